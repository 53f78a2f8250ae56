"""One ingest request: bytes to batches, and each batch through its lane to the rules.

A lane is strictly contiguous. Whatever is refused for good (a poison batch) still takes its
sequence, so that the lane goes on behind it; whatever may be sent again takes none.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from metrana_async.errors import BatchTooLargeError, ProtocolError
from metrana_async.server.ingest.attributes import apply_attribute, check_attribute
from metrana_async.server.ingest.catalogue import Changes, RunState
from metrana_async.server.ingest.judging import BatchJudge
from metrana_async.server.ingest.validation import check_batch
from metrana_async.server.store.base import AnswerRow, LaneRow, PointStore
from metrana_async.wire import limits
from metrana_async.wire.acks import BatchReply, BatchStatus, Outcome
from metrana_async.wire.batch import decode_batch
from metrana_async.wire.frames import FRAME_PAGE, Frame, iter_frames
from metrana_async.wire.model import UNKNOWN_DIGEST, Batch
from metrana_async.wire.pages import Page, decode_page


@dataclass(slots=True)
class Sent:
    """A batch frame and its batch, or why it cannot be read."""

    frame: Frame
    batch: Batch | None
    reason: str = ""


@dataclass(slots=True)
class Request:
    """A request's batches, all of one writer, and the pages sent along."""

    run_uid: str
    writer_id: str
    pages: dict[str, Page]
    sent: list[Sent]


def read_request(body: bytes | memoryview) -> Request:
    """Decode a request body.

    Raises:
        ProtocolError: damaged frames, no batch, batches of several writers, or a batch so broken
            that it does not say whose it is.
        BatchTooLargeError: beyond the limits of a request.
    """
    if len(body) > limits.REQUEST_BYTES:
        raise BatchTooLargeError(f"a request of {len(body)} bytes is over {limits.REQUEST_BYTES}")
    pages: dict[str, Page] = {}
    sent: list[Sent] = []
    writers = set()
    for frame in iter_frames(body):
        if frame.type == FRAME_PAGE:
            page = decode_page(frame.body, frame.encoded)
            pages[page.digest] = page
            continue
        if len(sent) == limits.REQUEST_BATCHES:
            raise BatchTooLargeError(f"a request holds over {limits.REQUEST_BATCHES} batches")
        try:
            batch = decode_batch(frame)
        except ProtocolError as error:
            writers.add(_identity(frame, error))
            sent.append(Sent(frame, None, error.message))
        else:
            writers.add((batch.run_uid, batch.writer_id))
            sent.append(Sent(frame, batch))
    if len(writers) != 1:
        raise ProtocolError(f"a request holds batches of {len(writers)} writers, not of one")
    ((run_uid, writer_id),) = writers
    return Request(run_uid, writer_id, pages, sent)


def _identity(frame: Frame, error: ProtocolError) -> tuple[str, str]:
    """Whose batch this is, read off a description that is otherwise broken."""
    body = frame.body
    try:
        description = orjson.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])
        run_uid, writer_id = description["run"], description["writer"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise error from None
    if not isinstance(run_uid, str) or not isinstance(writer_id, str):
        raise error
    return run_uid, writer_id


@dataclass(slots=True)
class RequestJudge:
    """Takes a request's batches through their lanes, one after the other."""

    store: PointStore
    run: RunState
    judge: BatchJudge
    changes: Changes

    def reply_to(self, sent: Sent, pages: dict[str, Page]) -> BatchReply:
        """Store, skip or refuse one batch."""
        frame = sent.frame
        key = (self.judge.writer, frame.lane)
        mark = self.changes.lanes.get(key) or self.run.lanes.get(key) or LaneRow(*key, 0, 0)
        if frame.seq <= mark.seq:
            return self._reply_to_known(sent, mark)
        if frame.seq > mark.seq + 1:
            return _reply(frame, BatchStatus.GAP, expected=mark.seq + 1)
        if sent.batch is None:
            return self._reject(frame, mark, sent.reason)
        if sent.batch.prev_digest != mark.digest and not _follows_anything(sent.batch):
            reason = f"the batch before it (seq {mark.seq}) has other bytes here"
            return _reply(frame, BatchStatus.CONFLICT, reason=reason)
        return self._store_batch(frame, sent.batch, mark, pages)

    def _reply_to_known(self, sent: Sent, mark: LaneRow) -> BatchReply:
        """Answer a sequence that is taken: by this batch, or by a cloned writer's."""
        frame, digest = sent.frame, _chain_digest(sent)
        known = mark.digest_at(frame.seq)
        if digest == UNKNOWN_DIGEST:
            pass  # A stand-in for nobody knows what contradicts nothing.
        elif known is not None and known != digest:
            return _reply(frame, BatchStatus.CONFLICT, reason="other bytes have this sequence")
        elif mark.has_outgrown(frame.seq):
            # Nothing says that these bytes are stored: no retry comes from so far behind, but a
            # clone that was woken later does, and would take "duplicate" for a promise.
            reason = f"seq {mark.seq} is stored already, too far on for this to be a retry"
            return _reply(frame, BatchStatus.CONFLICT, reason=reason)
        return self._answer_again(frame, (mark.writer_no, mark.lane))

    def _answer_again(self, frame: Frame, key: tuple[int, int]) -> BatchReply:
        """The answer of the first time: it may not have arrived, and it may have been a refusal."""
        answer = self.run.kept_answer(key, frame.seq)
        if answer is None:
            return _reply(frame, BatchStatus.DUPLICATE)
        if answer.reason is not None:
            return _reply(frame, BatchStatus.REJECTED, reason=answer.reason)
        return _reply(frame, BatchStatus.DUPLICATE, counts=answer.counts)

    def _store_batch(
        self, frame: Frame, batch: Batch, mark: LaneRow, pages: dict[str, Page]
    ) -> BatchReply:
        if batch.stands_for and _has_content(batch):
            # Content under a foreign digest could not be told from what it stands for.
            return self._reject(frame, mark, "a batch with content stands for another")
        if max(len(batch.series_pages), len(batch.env_pages)) > limits.PAGES_PER_BATCH:
            return self._reject(frame, mark, f"more than {limits.PAGES_PER_BATCH} pages of a kind")
        dictionary = self.run.series_dictionary(batch.series_pages, pages)
        envs = self.run.env_dictionary(batch.env_pages, pages, self.changes)
        missing = [d for found in (dictionary, envs) if isinstance(found, list) for d in found]
        if isinstance(dictionary, list) or isinstance(envs, list):
            return _reply(frame, BatchStatus.NEED_PAGES, pages=tuple(dict.fromkeys(missing)))
        try:
            check_batch(batch, dictionary.definitions, dictionary.families, len(envs))
            for update in batch.attributes:
                check_attribute(update)
            counts = self.judge.judge(batch, dictionary, envs)
        except ProtocolError as error:
            return self._reject(frame, mark, error.message)
        for update in batch.attributes:
            apply_attribute(self.run, update, self.changes)
        self.run.count(counts)
        self.run.count({f"lost:{reason}": n for reason, n in batch.lost.items()})
        self._keep_pages((*batch.series_pages, *batch.env_pages), pages)
        # Behind a stand-in the chain goes on from what it stands for.
        self._advance(mark.followed_by(batch.stands_for or frame.digest))
        if counts.keys() - {Outcome.STORED.value}:
            self._note_answer(frame, None, counts)
        return _reply(frame, BatchStatus.STORED, counts=counts)

    def _reject(self, frame: Frame, mark: LaneRow, reason: str) -> BatchReply:
        self.run.count({"rejected": frame.points_count} if frame.points_count else {})
        self._advance(mark.followed_by(frame.digest))
        self._note_answer(frame, reason, {})
        return _reply(frame, BatchStatus.REJECTED, reason=reason)

    def _note_answer(self, frame: Frame, reason: str | None, counts: dict[str, int]) -> None:
        answer = AnswerRow(self.judge.writer, frame.lane, frame.seq, reason, dict(counts))
        self.run.note_answer(answer, self.changes)

    def _advance(self, mark: LaneRow) -> None:
        key = (mark.writer_no, mark.lane)
        self.run.lanes[key] = self.changes.lanes[key] = mark

    def _keep_pages(self, digests: tuple[str, ...], pages: dict[str, Page]) -> None:
        run_no = self.run.row.run_no
        kept = self.changes.commit.pages
        for digest in digests:
            page = pages.get(digest)
            if page is None or any(d == digest and no == run_no for no, d, _ in kept):
                continue
            if self.store.page(run_no, digest) is None:
                kept.append((run_no, digest, page.frame))


def _has_content(batch: Batch) -> bool:
    return bool(batch.points_count or batch.attributes)


def _follows_anything(batch: Batch) -> bool:
    """Whether it stands in for a batch whose predecessor its sender could not name any more."""
    return bool(batch.stands_for) and not batch.prev_digest


def _chain_digest(sent: Sent) -> int:
    """The digest that the mark has once this batch is stored."""
    batch = sent.batch
    if batch is None or not batch.stands_for or _has_content(batch):
        return sent.frame.digest
    return batch.stands_for


def _reply(
    frame: Frame,
    status: BatchStatus,
    *,
    counts: dict[str, int] | None = None,
    expected: int | None = None,
    reason: str | None = None,
    pages: tuple[str, ...] = (),
) -> BatchReply:
    return BatchReply(frame.lane, frame.seq, status, counts or {}, expected, reason, pages)
