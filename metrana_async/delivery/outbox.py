"""All lanes of one writer: what to send next, and what an answer means. Pure.

One request at a time may carry consecutive batches of every lane, each lane in order; page frames
come first, for pages the server has not confirmed. An answer is checked as a whole before any
part of it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metrana_async.delivery.batcher import Batcher
from metrana_async.delivery.lane import Lane, SealedBatch, unsealed
from metrana_async.delivery.splitting import Load
from metrana_async.errors import MetranaError, ProtocolError
from metrana_async.statistics import Ledger
from metrana_async.wire import limits
from metrana_async.wire.acks import BatchStatus, IngestReply

RETENTION_S: Final = 600.0
RETENTION_BYTES: Final = 64 << 20

_NO_PROGRESS_MAX: Final = 3


@dataclass(slots=True)
class Request:
    """One request body and what is in it."""

    body: bytes
    batches: list[SealedBatch] = field(default_factory=list)
    pages: tuple[str, ...] = ()


class Outbox:
    """Sealed batches of one writer until, and for a while after, they are stored."""

    def __init__(self, batcher: Batcher, ledger: Ledger, *, compress: bool = False) -> None:
        self.lanes: dict[int, Lane] = {}
        self._batcher = batcher
        self._ledger = ledger
        self._compress = compress
        self._known_pages: set[str] = set()
        self._credit_bytes = limits.REQUEST_BYTES
        self._is_isolating = False
        self._no_progress_count = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes sealed and not acknowledged."""
        return sum(lane.queued_bytes for lane in self.lanes.values())

    @property
    def queued_points(self) -> int:
        """Points sealed and not acknowledged."""
        return sum(lane.queued_points for lane in self.lanes.values())

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
        # A renamed writer's lanes start over: there it is all that was sealed. What was abandoned
        # will never be acknowledged.
        return all(
            not lanes[number].queue or lanes[number].acked_seq >= min(seq, lanes[number].sealed_seq)
            for number, seq in marks.items()
        )

    def is_empty(self) -> bool:
        """True when nothing waits to be sent or acknowledged."""
        return not any(lane.queue for lane in self.lanes.values())

    # --- in ----------------------------------------------------------------------------------
    def seal(self, loads: Mapping[int, Load], lost: Mapping[str, int]) -> None:
        """Seal loads into batches of their lanes; `lost` is declared on lane 0."""
        for number in sorted(loads):
            lane = self._lane(number)
            for batch in self._batcher.batches(number, loads[number]):
                lane.seal(batch)
                self._ledger.batches_sealed += 1
        if lost:
            self._lane(0).seal(self._batcher.empty_batch(0, dict(lost)))
            self._ledger.batches_sealed += 1

    def _lane(self, number: int) -> Lane:
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = self._new_lane(number)
        return lane

    def _new_lane(self, number: int) -> Lane:
        return Lane(
            number,
            self._ledger,
            run_uid=self._batcher.run_uid,
            writer_id=self._batcher.writer_id,
            compress=self._compress,
        )

    # --- out ---------------------------------------------------------------------------------
    def next_request(self) -> Request | None:
        """The next request to send, or None when there is nothing to send."""
        batches: list[SealedBatch] = []
        pages: dict[str, bytes] = {}
        budget = min(limits.REQUEST_BYTES, max(self._credit_bytes, 1))
        nbytes = 0
        count_max = 1 if self._is_isolating else limits.REQUEST_BATCHES
        for lane in self.lanes.values():
            for sealed in lane.queue:
                missing = {
                    digest: self._batcher.page(digest).frame
                    for digest in sealed.pages
                    if digest not in self._known_pages and digest not in pages
                }
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

    # --- answers -----------------------------------------------------------------------------
    def on_reply(self, request: Request, reply: IngestReply, now_s: float) -> None:
        """Apply the server's answer to `request`.

        Raises:
            ProtocolError: the answer is not one to this request; nothing was applied.
        """
        self._check(request, reply)
        before = self.queued_bytes
        self._known_pages.update(request.pages)
        for answered in reply.replies:
            if answered.status is BatchStatus.NEED_PAGES:
                self._known_pages.difference_update(answered.pages)
            else:
                self.lanes[answered.lane].apply(answered, now_s)
        self._credit_bytes = reply.credit_bytes or limits.REQUEST_BYTES
        self._is_isolating = False
        has_progressed = self.queued_bytes < before
        self._no_progress_count = 0 if has_progressed else self._no_progress_count + 1
        self.forget(now_s)

    def _check(self, request: Request, reply: IngestReply) -> None:
        if (reply.run_uid, reply.writer_id) != (self._batcher.run_uid, self._batcher.writer_id):
            raise ProtocolError(f"the answer is for writer {reply.writer_id} of {reply.run_uid}")
        sent = {(sealed.lane, sealed.seq) for sealed in request.batches}
        for answered in reply.replies:
            if (answered.lane, answered.seq) not in sent:
                raise ProtocolError(
                    f"the answer names lane {answered.lane} seq {answered.seq}, not in the request"
                )
            self.lanes[answered.lane].check(answered, reply.acked.get(answered.lane))
            foreign = [d for d in answered.pages if d not in self._pages_of(request)]
            if foreign:
                raise ProtocolError(f"the server asks for page {foreign[0]}, which is not ours")

    @staticmethod
    def _pages_of(request: Request) -> set[str]:
        return {digest for sealed in request.batches for digest in sealed.pages}

    def on_refused(self, request: Request, error: MetranaError) -> None:
        """The server refused a whole request for good: find the batch it cannot take.

        Requests carry one batch each until the culprit is alone; then a declaration of loss
        takes its place.
        """
        if len(request.batches) > 1:
            self._is_isolating = True
            return
        self.lanes[request.batches[0].lane].replace_head(error.code)

    def on_marks(self, acked: Mapping[int, int]) -> None:
        """Compare with the server's complete high-water marks; queue again what it lost.

        Raises:
            ProtocolError: a mark is beyond what was sent.
        """
        for number, seq in acked.items():
            sent = self.lanes[number].sent_seq if number in self.lanes else 0
            if seq > sent:
                raise ProtocolError(f"lane {number}: acked {seq} is beyond the last sent {sent}")
        for number, lane in self.lanes.items():
            mark = acked.get(number, 0)
            if mark < lane.acked_seq:
                lane.rewind(mark + 1)
        # A restored server may have lost pages too; sending them again is cheap.
        self._known_pages.clear()

    @property
    def is_conflicted(self) -> bool:
        """True when another writer uses this identity: `rename` before sending on."""
        return any(lane.is_conflicted for lane in self.lanes.values())

    def rename(self, writer_id: str) -> None:
        """Go on as a new writer incarnation: what is not acknowledged is sealed anew."""
        self._batcher.writer_id = writer_id
        for number, lane in list(self.lanes.items()):
            fresh = self.lanes[number] = self._new_lane(number)
            for sealed in lane.queue:
                fresh.seal(replace(unsealed(sealed), writer_id=writer_id))

    def forget(self, now_s: float) -> None:
        """Drop acknowledged batches beyond the retention."""
        share = RETENTION_BYTES // max(1, len(self.lanes))
        for lane in self.lanes.values():
            lane.forget(before_s=now_s - RETENTION_S, bytes_max=share)

    def abandon(self) -> int:
        """Give up what is queued; returns how many points that loses."""
        points = self.queued_points
        for lane in self.lanes.values():
            lane.queue.clear()
            lane.queued_bytes = lane.queued_points = 0
        return points
