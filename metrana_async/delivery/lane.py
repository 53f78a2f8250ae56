"""One ordered stream of a writer's batches: sealed, sent, acknowledged, retained. Pure.

Invariants: sequences are contiguous from 1; a sealed batch keeps its bytes until it is forgotten;
``queue`` holds what is not acknowledged, in order; ``retained`` holds what was, for as long as a
restored server may ask for it again.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Final

from metrana_async.errors import InternalError, ProtocolError
from metrana_async.statistics import Ledger
from metrana_async.wire.acks import BatchReply, BatchStatus, Outcome
from metrana_async.wire.batch import decode_batch, encode_batch
from metrana_async.wire.frames import decode_frame, frame_digest
from metrana_async.wire.model import Batch

ROLLBACK: Final = "server_rollback"


@dataclass(slots=True)
class SealedBatch:
    """A batch as bytes.

    Attributes:
        frame: what is sent, the same in every retry.
        pages: digests of the pages it lists.
        points_count: points it carries.
        prev_digest: digest of the batch before it; the server checks the chain.
        committed: how many of them the server acknowledged as durable.
        acked_s: monotonic time of that acknowledgement.
    """

    lane: int
    seq: int
    frame: bytes
    pages: tuple[str, ...]
    points_count: int
    prev_digest: int
    committed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    acked_s: float = 0.0


class Lane:
    """The state of one lane. One owner: the engine thread."""

    def __init__(
        self, number: int, ledger: Ledger, *, run_uid: str, writer_id: str, compress: bool = False
    ) -> None:
        self.number = number
        self.queue: deque[SealedBatch] = deque()
        self.retained: deque[SealedBatch] = deque()
        self.sealed_seq = 0
        self.sent_seq = 0
        self.queued_bytes = 0
        self.queued_points = 0
        self.retained_bytes = 0
        self._ledger = ledger
        self._run_uid = run_uid
        self._writer_id = writer_id
        self._compress = compress
        self._last_digest = 0
        # Committed points and digest of each forgotten batch, sequence 1 first: what a rollback
        # loses, and where the chain goes on. 16 bytes a batch.
        self._forgotten: array[int] = array("q")
        self._forgotten_digests: array[int] = array("Q")
        self.is_conflicted = False

    @property
    def acked_seq(self) -> int:
        """Greatest sequence with everything up to it acknowledged."""
        return self.queue[0].seq - 1 if self.queue else self.sealed_seq

    def seal(self, batch: Batch) -> SealedBatch:
        """Number and encode a batch, and queue it."""
        numbered = replace(
            batch, lane=self.number, seq=self.sealed_seq + 1, prev_digest=self._last_digest
        )
        sealed = self._sealed(numbered)
        self.sealed_seq = sealed.seq
        self._last_digest = frame_digest(sealed.frame)
        self._enqueue(sealed)
        return sealed

    def _sealed(self, batch: Batch) -> SealedBatch:
        frame = encode_batch(batch, compress=self._compress)
        pages = (*batch.series_pages, *batch.env_pages)
        return SealedBatch(
            batch.lane, batch.seq, frame, pages, batch.points_count, batch.prev_digest
        )

    def _enqueue(self, sealed: SealedBatch) -> None:
        self.queue.append(sealed)
        self.queued_bytes += len(sealed.frame)
        self.queued_points += sealed.points_count

    # --- answers ---------------------------------------------------------------------------
    def check(self, reply: BatchReply, acked: int | None) -> None:
        """Check an answer before anything of the request is applied.

        Raises:
            ProtocolError: it names a batch that was not sent, or a mark beyond what was; such an
                answer is never permission to delete.
        """
        where = f"lane {self.number}"
        if not 1 <= reply.seq <= self.sent_seq:
            raise ProtocolError(f"{where}: seq {reply.seq} answered, {self.sent_seq} was the last")
        if acked is not None and acked > self.sent_seq:
            raise ProtocolError(f"{where}: acked {acked} is beyond the last sent {self.sent_seq}")
        is_settled = reply.status in _SETTLED
        if is_settled and (acked is None or acked < reply.seq):
            raise ProtocolError(f"{where}: seq {reply.seq} {reply.status.value}, acked {acked}")
        if reply.status is BatchStatus.GAP and (
            reply.expected is None or not 1 <= reply.expected <= self.sent_seq
        ):
            raise ProtocolError(f"{where}: gap expects {reply.expected}, sent {self.sent_seq}")

    def apply(self, reply: BatchReply, now_s: float) -> None:
        """Apply one checked answer."""
        if reply.status is BatchStatus.GAP:
            assert reply.expected is not None
            if reply.expected <= self.acked_seq:
                self.rewind(reply.expected)
            return
        if not self.queue or reply.seq != self.queue[0].seq:
            return  # An answer to a batch that is settled, or that waits behind one that is not.
        if reply.status in (BatchStatus.STORED, BatchStatus.DUPLICATE):
            self._settle_stored(reply, now_s)
        elif reply.status is BatchStatus.REJECTED:
            reason = reply.reason or reply.status.value
            self._ledger.rejected[reason] += self.queue[0].points_count
            self._retain(self._pop(), now_s)
        elif reply.status is BatchStatus.CONFLICT:
            # Somebody else wrote under our identity (a cloned machine). Nothing was stored.
            self.is_conflicted = True

    def _settle_stored(self, reply: BatchReply, now_s: float) -> None:
        sealed = self._pop()
        conflicts = min(reply.counts.get(Outcome.PIN_CONFLICT.value, 0), sealed.points_count)
        sealed.committed = sealed.points_count - conflicts
        sealed.counts = dict(reply.counts)
        self._ledger.committed += sealed.committed
        self._ledger.lost[Outcome.PIN_CONFLICT.value] += conflicts
        self._ledger.outcomes += Counter(reply.counts)
        self._retain(sealed, now_s)

    def _pop(self) -> SealedBatch:
        sealed = self.queue.popleft()
        self.queued_bytes -= len(sealed.frame)
        self.queued_points -= sealed.points_count
        return sealed

    def _retain(self, sealed: SealedBatch, now_s: float) -> None:
        sealed.acked_s = now_s
        self.retained.append(sealed)
        self.retained_bytes += len(sealed.frame)

    # --- a batch that can never be stored ---------------------------------------------------
    def replace_head(self, reason: str) -> None:
        """Put a declaration of loss in the place of the first unacknowledged batch.

        Its sequence is taken, so that what lies behind it goes on.
        """
        if not self.queue:
            raise InternalError(f"lane {self.number} has no batch to replace")
        poison = self._pop()
        self._ledger.rejected[reason] += poison.points_count
        self._put_fillers({poison.seq: poison.points_count}, reason, poison.prev_digest)

    def _put_fillers(self, points_by_seq: dict[int, int], reason: str, prev_digest: int) -> None:
        """Put batches that only declare a loss in front of the queue, and mend the chain behind."""
        behind, self.queue = self.queue, deque()
        self.queued_bytes = self.queued_points = 0
        for seq, points in points_by_seq.items():
            lost = {reason: points} if points else {}
            filler = Batch(self._run_uid, self._writer_id, self.number, seq, lost=lost)
            prev_digest = self._chain(filler, prev_digest)
        for sealed in behind:
            prev_digest = self._chain(unsealed(sealed), prev_digest)
        self._last_digest = prev_digest

    def _chain(self, batch: Batch, prev_digest: int) -> int:
        sealed = self._sealed(replace(batch, prev_digest=prev_digest))
        self._enqueue(sealed)
        return frame_digest(sealed.frame)

    # --- a server that went back in time -----------------------------------------------------
    def rewind(self, seq: int) -> None:
        """Queue everything from `seq` on again: the server does not have it any more.

        Batches that were forgotten meanwhile become declarations of loss, so that the lane can
        go on past the hole.
        """
        while self.retained and self.retained[-1].seq >= seq:
            sealed = self.retained.pop()
            self.retained_bytes -= len(sealed.frame)
            self._take_back(sealed)
        missing = range(seq, min(len(self._forgotten), self.acked_seq) + 1)
        if missing:
            points_by_seq = {n: self._forgotten[n - 1] for n in missing}
            points = sum(points_by_seq.values())
            self._ledger.committed -= points
            self._ledger.lost[ROLLBACK] += points
            prev_digest = self._forgotten_digests[seq - 2] if seq > 1 else 0
            self._put_fillers(points_by_seq, ROLLBACK, prev_digest)
            del self._forgotten[seq - 1 :], self._forgotten_digests[seq - 1 :]

    def _take_back(self, sealed: SealedBatch) -> None:
        conflicts = sealed.counts.get(Outcome.PIN_CONFLICT.value, 0)
        if sealed.committed or conflicts:
            self._ledger.committed -= sealed.committed
            self._ledger.lost[Outcome.PIN_CONFLICT.value] -= sealed.points_count - sealed.committed
            self._ledger.outcomes.subtract(sealed.counts)
            points_count = sealed.points_count
        else:
            # It was rejected and stays counted so; sent again only to fill its sequence.
            points_count = 0
        again = replace(sealed, points_count=points_count, committed=0, counts={})
        self.queue.appendleft(again)
        self.queued_bytes += len(again.frame)
        self.queued_points += points_count

    def forget(self, *, before_s: float, bytes_max: int) -> None:
        """Drop retained batches acknowledged before `before_s`, and the oldest beyond the bound."""
        while self.retained and (
            self.retained[0].acked_s < before_s or self.retained_bytes > bytes_max
        ):
            sealed = self.retained.popleft()
            self.retained_bytes -= len(sealed.frame)
            self._forgotten.append(sealed.committed)
            self._forgotten_digests.append(frame_digest(sealed.frame))
            assert len(self._forgotten) == sealed.seq


def unsealed(sealed: SealedBatch) -> Batch:
    """The batch again, to be sealed at another place of a chain."""
    return decode_batch(decode_frame(sealed.frame))


_SETTLED = (BatchStatus.STORED, BatchStatus.DUPLICATE, BatchStatus.REJECTED)
