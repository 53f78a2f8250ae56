"""All lanes of one writer: what to send next, and what an answer means. Pure.

One request at a time may carry consecutive batches of every lane, each lane in order; page frames
come first, for pages the server has not confirmed. An answer is checked as a whole before any
part of it is applied.

Where there is a spool, ``fresh`` holds what it does not have yet. While the outbox *overflows*,
new batches go through ``fresh`` to the disk only, behind everything that waits, and come back
through `load` as the queues empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.lane import DAMAGED, Lane, SealedBatch, unsealed
from metrana_async.delivery.splitting import Load
from metrana_async.errors import MetranaError, ProtocolError, UnavailableError
from metrana_async.statistics import Ledger
from metrana_async.wire import limits
from metrana_async.wire.acks import BatchReply, BatchStatus, IngestReply
from metrana_async.wire.batch import BatchHead
from metrana_async.wire.frames import Frame, iter_frames
from metrana_async.wire.model import Batch
from metrana_async.wire.pages import Page

RETENTION_S: Final = 600.0
RETENTION_BYTES: Final = 32 << 20

_NO_PROGRESS_MAX: Final = 3
# One such answer may be somebody else's that went astray.
_FOREIGN_MARKS_MAX: Final = 2
# About half a minute of tries: a proxy that changes bytes is an outage, no reason to lose them.
_UNREAD_MAX: Final = 8


class Pages(Protocol):
    """Where the outbox finds the pages that its batches list."""

    def page(self, digest: str) -> Page | None:
        """The page, or None when nobody has it any more."""
        ...


@dataclass(slots=True)
class Request:
    """One request body and what is in it."""

    body: bytes
    batches: list[SealedBatch] = field(default_factory=list)
    pages: tuple[str, ...] = ()


class Outbox:
    """Sealed batches of one writer until, and for a while after, they are stored."""

    def __init__(
        self,
        batcher: Batcher | None,
        pages: Pages,
        ledger: Ledger,
        *,
        run_uid: str,
        writer_id: str,
        compress: bool = False,
    ) -> None:
        """Make an empty outbox.

        Args:
            batcher: makes the batches; None where they are only read back from a spool.
            pages: finds the pages that they list.
            ledger: counts what becomes of the points.
            run_uid: 32 hex digits that the batches carry.
            writer_id: the same.
            compress: whether frames are compressed.
        """
        self.lanes: dict[int, Lane] = {}
        self.fresh: deque[SealedBatch] = deque()
        self.is_spooling = False
        self.is_overflowing = False
        self.has_forgotten_too_much = False
        """Of leftovers: True once a rollback went beyond what is in memory. It is on the disk."""
        self.on_queued_again: Callable[[], None] = _nobody_waits
        """Called when a rollback has put batches into `fresh` again."""
        self.run_uid = run_uid
        self.writer_id = writer_id
        self._batcher = batcher
        self._pages = pages
        self._ledger = ledger
        self._compress = compress
        self._known_pages: set[str] = set()
        self._credit_bytes = limits.REQUEST_BYTES
        self._body_bytes_max = limits.REQUEST_BYTES
        self._is_isolating = False
        self._unread_count = 0
        self._no_progress_count = 0
        self._unqueued_bytes = 0
        self._foreign_marks_count = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes in memory that are sealed and not acknowledged."""
        return self._unqueued_bytes + sum(lane.queued_bytes for lane in self.lanes.values())

    @property
    def loaded_bytes(self) -> int:
        """Bytes in the queues of the lanes: what can be sent without the disk."""
        return sum(lane.queued_bytes for lane in self.lanes.values())

    @property
    def waiting_points(self) -> int:
        """Points sealed and not acknowledged, in memory or on the disk."""
        return sum(lane.waiting_points for lane in self.lanes.values())

    @property
    def is_stuck(self) -> bool:
        """True when several answers in a row settled nothing: pause before the next request."""
        return self._no_progress_count >= _NO_PROGRESS_MAX

    def marks(self) -> dict[int, int]:
        """Sealed sequence per lane: what a flush waits for."""
        return {number: lane.sealed_seq for number, lane in self.lanes.items()}

    def has_reached(self, marks: Mapping[int, int]) -> bool:
        """Whether everything up to `marks` is acknowledged or given up."""
        lanes = self.lanes
        # A renamed writer's lanes start over: there it is all that was sealed.
        return all(
            lanes[number].acked_seq >= min(seq, lanes[number].sealed_seq)
            for number, seq in marks.items()
            if number in lanes
        )

    def has_kept(self, marks: Mapping[int, int]) -> bool:
        """Whether everything up to `marks` is acknowledged, given up, or durable in the spool."""
        lanes = self.lanes
        return all(
            lanes[number].kept_seq >= min(seq, lanes[number].sealed_seq)
            for number, seq in marks.items()
            if number in lanes
        )

    def is_empty(self) -> bool:
        """True when nothing waits to be sent or acknowledged."""
        return all(lane.is_loaded and not lane.queue for lane in self.lanes.values())

    def acked(self) -> dict[int, int]:
        """Acknowledged sequence per lane: what the spool need not keep."""
        return {number: lane.acked_seq for number, lane in self.lanes.items()}

    # --- in ----------------------------------------------------------------------------------
    def seal(self, loads: Mapping[int, Load], lost: Mapping[str, int], now_s: float) -> None:
        """Seal loads into batches of their lanes; `lost` is declared on lane 0."""
        assert self._batcher is not None
        for number in sorted(loads):
            for batch in self._batcher.batches(number, loads[number]):
                self._admit(self._seal(number, batch, now_s))
        if lost:
            self._admit(self._seal(0, self._batcher.empty_batch(0, dict(lost)), now_s))

    def _seal(self, number: int, batch: Batch, now_s: float) -> SealedBatch:
        self._ledger.batches_sealed += 1
        return self._lane(number).seal(batch, now_s, is_queued=not self.is_overflowing)

    def _admit(self, sealed: SealedBatch) -> None:
        if self.is_overflowing:
            self._unqueued_bytes += len(sealed.frame)
        if self.is_spooling:
            self.fresh.append(sealed)

    def _lane(self, number: int) -> Lane:
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = self._new_lane(number)
        return lane

    def _new_lane(self, number: int) -> Lane:
        return Lane(
            number,
            self._ledger,
            run_uid=self.run_uid,
            writer_id=self.writer_id,
            compress=self._compress,
        )

    # --- the spool ---------------------------------------------------------------------------
    def unspooled(self) -> list[SealedBatch]:
        """What is neither settled nor durable on disk, in the order of sealing."""
        while self.fresh and self.fresh[0].is_settled:
            self.fresh.popleft()
        return [sealed for sealed in self.fresh if not sealed.is_settled]

    def note_durable(self, batches: Iterable[SealedBatch]) -> None:
        """The spool holds these, the first of `fresh`, for good."""
        for sealed in batches:
            lane = self.lanes[sealed.lane]
            lane.note_durable(sealed)
            if sealed.seq > lane.loaded_seq:
                self._unqueued_bytes -= len(sealed.frame)
        while self.fresh and (self.fresh[0].is_durable or self.fresh[0].is_settled):
            self.fresh.popleft()

    def start_at(self, acked: Mapping[int, int]) -> None:
        """Take up a dead writer's lanes at the server's marks; only before anything else."""
        for number, seq in acked.items():
            self._lane(number).start_at(seq)

    def forget_spool(self) -> None:
        """The spool's files are gone: what is in memory is to be spooled again."""
        again = [sealed for lane in self.lanes.values() for sealed in lane.forget_spool()]
        unqueued = [s for s in self.fresh if s.seq > self.lanes[s.lane].loaded_seq]
        self.fresh = deque([*again, *unqueued])

    def load(self, frame: Frame, head: BatchHead) -> None:
        """Queue a batch that was read back from the disk; other writers' are passed over."""
        if (head.run_uid, head.writer_id) == (self.run_uid, self.writer_id):
            self._lane(frame.lane).load(frame, head)

    def finish_loading(self) -> bool:
        """Go on in memory once the disk has nothing that is not loaded; True when it is so."""
        behind = {number: lane.loaded_seq for number, lane in self.lanes.items()}
        for sealed in self.fresh:
            if sealed.seq == behind[sealed.lane] + 1:
                behind[sealed.lane] = sealed.seq
        if any(behind[number] != lane.sealed_seq for number, lane in self.lanes.items()):
            return False
        for sealed in self.fresh:
            lane = self.lanes[sealed.lane]
            if sealed.seq > lane.loaded_seq:
                lane.enqueue(sealed)
        self._unqueued_bytes = 0
        self.is_overflowing = False
        return True

    def give_up_unloaded(self) -> None:
        """Nothing more can be read back: declare lost what is on the disk only."""
        for lane in self.lanes.values():
            lane.give_up_unloaded()
        self.is_overflowing = False
        self._unqueued_bytes = 0

    # --- out ---------------------------------------------------------------------------------
    def next_request(self) -> Request | None:
        """The next request to send, or None when there is nothing to send."""
        batches: list[SealedBatch] = []
        pages: dict[str, bytes] = {}
        budget = min(self._body_bytes_max, max(self._credit_bytes, 1))
        nbytes = 0
        count_max = 1 if self._is_isolating else limits.REQUEST_BATCHES
        # Before a new name is taken: only what the server may have stored under the old one.
        is_asking = self.is_conflicted and not self.must_rename
        for lane in self.lanes.values():
            if is_asking and not lane.is_unsure:
                continue
            for sealed in lane.queue:
                missing = self._frames_of(sealed.pages, pages)
                cost = len(sealed.frame) + sum(map(len, missing.values()))
                # One batch always goes, or a small credit would stop the writer for ever.
                if batches and (nbytes + cost > budget or len(batches) >= count_max):
                    break
                batches.append(sealed)
                pages |= missing
                nbytes += cost
                lane.sent_seq = max(lane.sent_seq, sealed.seq)
        if not batches:
            return None
        body = b"".join([*pages.values(), *(sealed.frame for sealed in batches)])
        return Request(body, batches, tuple(pages))

    @staticmethod
    def note_sent(request: Request) -> None:
        """From here on the server may have these, until an answer says so or not."""
        for sealed in request.batches:
            sealed.is_unsure = True

    def _frames_of(self, digests: tuple[str, ...], sent: Mapping[str, bytes]) -> dict[str, bytes]:
        """The pages among `digests` that the server is not known to have and that are at hand."""
        missing = {}
        for digest in digests:
            if digest not in self._known_pages and digest not in sent:
                page = self._pages.page(digest)
                if page is not None:
                    missing[digest] = page.frame
        return missing

    # --- answers -----------------------------------------------------------------------------
    def on_reply(self, request: Request, reply: IngestReply, now_s: float) -> None:
        """Apply the server's answer to `request`.

        Raises:
            ProtocolError: the answer is not one to this request; nothing was applied.
            UnavailableError: `has_forgotten_too_much`; nothing was applied.
        """
        self._check(request, reply)
        try:
            self._check_marks(reply.acked)
        except ProtocolError:
            # Said again, it is another writer's doing; what the answer says of our own batches
            # stands, or they would be sent once more under another name.
            if not self.is_conflicted:
                raise
        for sealed in request.batches:
            sealed.is_unsure = False
        before = self.queued_bytes
        listed = {(sealed.lane, sealed.seq): sealed.pages for sealed in request.batches}
        for answered in reply.replies:
            if answered.status in (BatchStatus.STORED, BatchStatus.DUPLICATE):
                # The server keeps the pages of what it stores, and of nothing else.
                self._known_pages.update(listed[answered.lane, answered.seq])
            if answered.status is BatchStatus.NEED_PAGES:
                self._known_pages.difference_update(answered.pages)
                self._replace_unreadable(answered)
            else:
                self.lanes[answered.lane].apply(answered, now_s)
        self._refresh()
        self._credit_bytes = reply.credit_bytes or limits.REQUEST_BYTES
        self._is_isolating = False
        self._unread_count = 0
        has_progressed = self.queued_bytes < before
        self._no_progress_count = 0 if has_progressed else self._no_progress_count + 1
        self.forget(now_s)

    def _replace_unreadable(self, answered: BatchReply) -> None:
        """A batch whose names nobody has any more can never be stored."""
        lane = self.lanes[answered.lane]
        is_first = bool(lane.queue) and lane.queue[0].seq == answered.seq
        if is_first and any(self._pages.page(digest) is None for digest in answered.pages):
            lane.replace_head(DAMAGED)

    def _check(self, request: Request, reply: IngestReply) -> None:
        if (reply.run_uid, reply.writer_id) != (self.run_uid, self.writer_id):
            raise ProtocolError(f"the answer is for writer {reply.writer_id} of {reply.run_uid}")
        sent = {(sealed.lane, sealed.seq) for sealed in request.batches}
        for answered in reply.replies:
            if (answered.lane, answered.seq) not in sent:
                raise ProtocolError(
                    f"the answer names lane {answered.lane} seq {answered.seq}, not in the request"
                )
            lane = self.lanes[answered.lane]
            lane.check(answered, reply.acked.get(answered.lane))
            if answered.status is BatchStatus.GAP:
                assert answered.expected is not None
                self._check_rewind(lane, answered.expected)
            foreign = [d for d in answered.pages if d not in self._pages_of(request)]
            if foreign:
                raise ProtocolError(f"the server asks for page {foreign[0]}, which is not ours")

    @staticmethod
    def _pages_of(request: Request) -> set[str]:
        return {digest for sealed in request.batches for digest in sealed.pages}

    def shrink(self, request: Request) -> bool:
        """Send at most half as much at a time; False where it was one batch, which is not cut."""
        if len(request.batches) == 1:
            return False
        self._body_bytes_max = len(request.body) // 2
        return True

    def on_refused(self, request: Request, error: MetranaError) -> bool:
        """The server refused a whole request for good: find the batch it cannot take.

        Requests carry one batch each until the culprit is alone; then a declaration of loss
        takes its place. But what cannot be read there and can be read here was most likely
        damaged on the way: then the same bytes go again, some times.

        Returns:
            Whether to pause before the next request.
        """
        if len(request.batches) > 1:
            self._is_isolating = True
            return False
        is_unread = isinstance(error, ProtocolError) and _is_readable(request.body)
        if is_unread and self._unread_count < _UNREAD_MAX:
            self._unread_count += 1
            return True
        self._unread_count = 0
        self.lanes[request.batches[0].lane].replace_head(error.code)
        return False

    def on_marks(
        self, acked: Mapping[int, int], when_asked: Mapping[int, int] | None = None
    ) -> None:
        """Compare with the server's complete high-water marks; queue again what it lost.

        Args:
            acked: the server's marks.
            when_asked: our `acked` when the question left. Lanes that went on since are left
                alone: the answer may be older than what they were told. Where the server did go
                back in time, its next answer says so again.

        Raises:
            ProtocolError: a mark is beyond what was sealed; nothing was applied.
            UnavailableError: `has_forgotten_too_much`; nothing was applied.
        """
        self._check_marks(acked)
        lost = {}
        for number, lane in self.lanes.items():
            mark = acked.get(number, 0)
            has_moved = when_asked is not None and when_asked.get(number, 0) != lane.acked_seq
            if mark < lane.acked_seq and not has_moved:
                self._check_rewind(lane, mark + 1)
                lost[number] = mark + 1
        for number, first_seq in lost.items():
            self.lanes[number].rewind(first_seq)
        # A restored server may have lost pages too; sending them again is cheap.
        self._known_pages.clear()
        self._refresh()

    def _check_rewind(self, lane: Lane, seq: int) -> None:
        """Leftovers are declared lost by nobody who could read them again."""
        is_rewind = seq <= lane.acked_seq
        if is_rewind and self._batcher is None and not lane.can_rewind(seq):
            self.has_forgotten_too_much = True
            raise UnavailableError("the server went back in time, beyond what is in memory")

    def _refresh(self) -> None:
        """What a rollback has queued again is to be spooled again, oldest first."""
        if not any(lane.taken_back for lane in self.lanes.values()):
            return
        for lane in self.lanes.values():
            if self.is_spooling:
                self.fresh.extendleft(lane.taken_back)
            lane.taken_back.clear()
        self.on_queued_again()

    def _check_marks(self, acked: Mapping[int, int]) -> None:
        """A mark says what the server has, never that something may be deleted.

        Whoever replays this writer's spool may have delivered what was not sent from here, and a
        replay learns of batches as it reads: such marks are as good as none. What was not even
        sealed can only be another writer's under our identity (a cloned machine).
        """
        if self._batcher is None:
            return
        for number, seq in acked.items():
            sealed = self.lanes[number].sealed_seq if number in self.lanes else 0
            if seq > sealed:
                self._foreign_marks_count += 1
                raise ProtocolError(
                    f"lane {number}: acked {seq} is beyond the last sealed {sealed}"
                )
        self._foreign_marks_count = 0

    @property
    def must_rename(self) -> bool:
        """Whether to `rename` before sending on.

        Not before the server has said of everything that was sent whether it has it: that would
        be stored twice.
        """
        return self.is_conflicted and not any(lane.is_unsure for lane in self.lanes.values())

    @property
    def is_conflicted(self) -> bool:
        """True when another writer uses this identity."""
        if self._foreign_marks_count >= _FOREIGN_MARKS_MAX:
            return True
        return any(lane.is_conflicted for lane in self.lanes.values())

    def rename(self, writer_id: str, now_s: float) -> None:
        """Go on as a new writer incarnation: what is not acknowledged is sealed anew.

        Only while nothing is on the disk only: that keeps the identity it was sealed with.
        """
        self.writer_id = writer_id
        if self._batcher is not None:
            self._batcher.writer_id = writer_id
        self.fresh.clear()
        self._foreign_marks_count = 0
        for number, lane in list(self.lanes.items()):
            self.lanes[number] = self._new_lane(number)
            for sealed in lane.queue:
                if sealed.is_durable:
                    self._ledger.spooled -= sealed.points_count
                batch = replace(unsealed(sealed), writer_id=writer_id, stands_for=0)
                self._admit(self._seal(number, batch, now_s))

    def forget(self, now_s: float) -> None:
        """Drop acknowledged batches beyond the retention."""
        share = RETENTION_BYTES // max(1, len(self.lanes))
        for lane in self.lanes.values():
            lane.forget(before_s=now_s - RETENTION_S, bytes_max=share)

    def abandon(self) -> int:
        """Give up what is not acknowledged; returns how many points that loses."""
        points = sum(lane.abandon() for lane in self.lanes.values())
        self.fresh.clear()
        self.is_overflowing = False
        self._unqueued_bytes = 0
        return points


def _nobody_waits() -> None:
    """Where nothing is spooled."""


def _is_readable(body: bytes) -> bool:
    try:
        for _ in iter_frames(body):
            pass
    except MetranaError:
        return False
    return True
