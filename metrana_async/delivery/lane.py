"""One ordered stream of a writer's batches: sealed, sent, acknowledged, retained. Pure.

Invariants: sequences are contiguous from 1; a sealed batch keeps its bytes until it is forgotten.
Of what is sealed and not acknowledged, ``queue`` holds the front in order, up to ``loaded_seq``;
what lies behind that is on the disk only (the spool) and is loaded as the queue empties.
``retained`` holds what was acknowledged, for as long as a restored server may ask for it again.

A batch that cannot be had any more (damaged on disk, forgotten before a rollback) or can never be
stored is replaced by a *stand-in*: an empty batch that takes its sequence, declares its points
lost, and carries its digest, so that the sealed bytes behind it keep their place in the chain.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metrana_async.errors import InternalError, ProtocolError
from metrana_async.statistics import Ledger
from metrana_async.wire.acks import BatchReply, BatchStatus, Outcome
from metrana_async.wire.batch import BatchHead, decode_batch, encode_batch
from metrana_async.wire.frames import Frame, decode_frame, frame_digest
from metrana_async.wire.model import UNKNOWN_DIGEST, Batch

ROLLBACK: Final = "server_rollback"
DAMAGED: Final = "spool_damaged"


@dataclass(slots=True)
class SealedBatch:
    """A batch as bytes.

    Attributes:
        frame: what is sent, the same in every retry.
        pages: digests of the pages it lists.
        points_count: points it carries.
        total: what the lane carried and declared lost up to and with it.
        sealed_s: monotonic time of sealing.
        is_written: whether it was handed to the spool's disk, synced or not.
        is_durable: whether the spool holds it, on disk for good.
        is_settled: whether it was acknowledged, refused or given up.
        is_unsure: whether it was sent and no answer has said what became of it.
        committed: how many of its points the server acknowledged as durable.
        acked_s: monotonic time of that acknowledgement.
    """

    lane: int
    seq: int
    frame: bytes
    pages: tuple[str, ...]
    points_count: int
    total: int = 0
    sealed_s: float = 0.0
    is_written: bool = False
    is_durable: bool = False
    is_settled: bool = False
    is_unsure: bool = False
    committed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    acked_s: float = 0.0

    @property
    def digest(self) -> int:
        """Digest of the frame; the batch behind it names it."""
        return frame_digest(self.frame)

    @property
    def chain_digest(self) -> int:
        """What the batch behind it names: of a stand-in, the digest of what it stands for."""
        if self.points_count:
            return self.digest  # A stand-in carries none; the others need no decoding.
        return unsealed(self).stands_for or self.digest


class Lane:
    """The state of one lane. One owner: the engine thread."""

    def __init__(
        self, number: int, ledger: Ledger, *, run_uid: str, writer_id: str, compress: bool = False
    ) -> None:
        self.number = number
        self.queue: deque[SealedBatch] = deque()
        self.retained: deque[SealedBatch] = deque()
        self.sealed_seq = 0
        self.loaded_seq = 0
        self.durable_seq = 0
        self.sent_seq = 0
        self.queued_bytes = 0
        self.waiting_points = 0
        self.retained_bytes = 0
        self.is_conflicted = False
        self.taken_back: list[SealedBatch] = []
        """Batches that a rollback has queued again and that the spool does not have."""
        self._ledger = ledger
        self._run_uid = run_uid
        self._writer_id = writer_id
        self._compress = compress
        self._last_digest = 0
        # Carried and declared lost up to sealed_seq and to loaded_seq; None where a dead writer's
        # leftovers begin in the middle of a lane.
        self._sealed_total = 0
        self._loaded_total: int | None = 0
        # Losses that batches declare which are on the disk only, oldest first: totals contain
        # them, and the ledger has counted them where they happened.
        self._declared: deque[tuple[int, Mapping[str, int]]] = deque()
        # Committed points and digest of each forgotten batch, sequence 1 first: what a rollback
        # loses, and where the chain goes on. 16 bytes a batch.
        self._forgotten: array[int] = array("q")
        self._forgotten_digests: array[int] = array("Q")

    @property
    def acked_seq(self) -> int:
        """Greatest sequence with everything up to it acknowledged, refused or given up."""
        return self.queue[0].seq - 1 if self.queue else self.loaded_seq

    @property
    def kept_seq(self) -> int:
        """Greatest sequence with everything up to it acknowledged or durably spooled.

        What a rollback has queued again is neither, also where later batches are durable.
        """
        for sealed in self.queue:
            if not sealed.is_durable:
                return sealed.seq - 1
        return max(self.loaded_seq, self.durable_seq)

    @property
    def is_unsure(self) -> bool:
        """Whether the server may have stored the first of what is queued; the rest lies behind."""
        return bool(self.queue) and self.queue[0].is_unsure

    @property
    def is_loaded(self) -> bool:
        """True when nothing of the lane is on the disk only."""
        return self.loaded_seq == self.sealed_seq

    # --- in ------------------------------------------------------------------------------------
    def seal(self, batch: Batch, now_s: float, *, is_queued: bool = True) -> SealedBatch:
        """Number and encode a batch; queue it, or leave that to `enqueue` or the spool."""
        numbered = replace(
            batch,
            lane=self.number,
            seq=self.sealed_seq + 1,
            prev_digest=self._last_digest,
            before=self._sealed_total,
        )
        sealed = self._sealed(numbered)
        sealed.sealed_s = now_s
        self.sealed_seq = sealed.seq
        self._sealed_total = sealed.total
        self._last_digest = sealed.digest
        self.waiting_points += sealed.points_count
        if is_queued:
            self.enqueue(sealed)
        elif batch.lost:
            self._declared.append((sealed.seq, batch.lost))
        return sealed

    def enqueue(self, sealed: SealedBatch) -> None:
        """Queue the batch that follows what is loaded."""
        if sealed.seq != self.loaded_seq + 1:
            raise InternalError(f"lane {self.number}: {sealed.seq} follows {self.loaded_seq}")
        self._append(sealed)

    def _append(self, sealed: SealedBatch) -> None:
        self.queue.append(sealed)
        self.queued_bytes += len(sealed.frame)
        self.loaded_seq, self._loaded_total = sealed.seq, sealed.total
        while self._declared and self._declared[0][0] <= sealed.seq:
            self._declared.popleft()

    def _sealed(self, batch: Batch) -> SealedBatch:
        frame = encode_batch(batch, compress=self._compress)
        pages = (*batch.series_pages, *batch.env_pages)
        total = batch.before + batch.points_count + sum(batch.lost.values())
        return SealedBatch(batch.lane, batch.seq, frame, pages, batch.points_count, total)

    # --- back from the disk ----------------------------------------------------------------------
    def start_at(self, acked_seq: int) -> None:
        """Take up a dead writer's lane where the server's mark is; only before anything else."""
        self.loaded_seq = self.sealed_seq = self.durable_seq = self.sent_seq = acked_seq
        if acked_seq:
            self._loaded_total = None
            # Nothing is known of them; a rollback while they are replayed loses unknown points.
            self._forgotten.extend([0] * acked_seq)
            self._forgotten_digests.extend([UNKNOWN_DIGEST] * acked_seq)

    def load(self, frame: Frame, head: BatchHead) -> None:
        """Queue a batch that was read back; what is known already is passed over.

        Batches missing before it are declared lost.
        """
        total = head.before + frame.points_count + sum(head.lost.values())
        if frame.seq <= self.loaded_seq:
            if frame.seq == self.loaded_seq and self._loaded_total is None:
                self._loaded_total = total
            return
        is_own = frame.seq <= self.sealed_seq
        if is_own and frame.seq > self.durable_seq:
            return  # Not synced: it is in memory still, and will be written again.
        if frame.seq > self.loaded_seq + 1:
            self._put_hole(frame.seq - 1, head.before, head.prev_digest)
        sealed = SealedBatch(
            self.number,
            frame.seq,
            bytes(frame.encoded),
            head.pages,
            frame.points_count,
            total,
            is_durable=True,
        )
        self._append(sealed)
        if not is_own:
            # Learnt of by reading: a dead writer's batch counts as accepted by whoever replays.
            self.sealed_seq = self.durable_seq = frame.seq
            self._sealed_total, self._last_digest = total, sealed.digest
            self.waiting_points += frame.points_count
            self._ledger.accepted += frame.points_count
            self._ledger.spooled += frame.points_count

    def give_up_unloaded(self) -> None:
        """Nothing more can be read back: declare what is sealed and not loaded lost."""
        if not self.is_loaded:
            self._put_hole(self.sealed_seq, self._sealed_total, self._last_digest)

    def _put_hole(self, last_seq: int, total: int, digest: int) -> None:
        """Stand-ins for everything from what is loaded to `last_seq`, before which `total` went."""
        points = 0 if self._loaded_total is None else max(0, total - self._loaded_total)
        # What the missing batches declared is declared again, and was no point of theirs.
        lost = self._declared_through(last_seq)
        points = max(0, points - lost.total())
        if last_seq <= self.sealed_seq:
            points = min(points, self.waiting_points)
            self.waiting_points -= points
            self._ledger.spooled -= points
        else:
            self._ledger.accepted += points
        self._ledger.lost[DAMAGED] += points
        lost[DAMAGED] += points
        for seq in range(self.loaded_seq + 1, last_seq + 1):
            stands_for = digest if seq == last_seq else UNKNOWN_DIGEST
            stand_in = self._stand_in(seq, dict(+lost), stands_for or UNKNOWN_DIGEST)
            stand_in.total = total
            self._append(stand_in)
            lost.clear()

    def _declared_through(self, last_seq: int) -> Counter[str]:
        """Losses that the batches behind what is loaded declare, up to `last_seq`."""
        found: Counter[str] = Counter()
        for seq, lost in self._declared:
            if seq <= last_seq:
                found.update(lost)
        return found

    def _stand_in(self, seq: int, lost: dict[str, int], stands_for: int) -> SealedBatch:
        return self._sealed(
            Batch(
                self._run_uid,
                self._writer_id,
                self.number,
                seq,
                stands_for=stands_for,
                lost=lost,
            )
        )

    def forget_spool(self) -> list[SealedBatch]:
        """The spool's files are gone; returns what is queued, to be spooled again."""
        for sealed in self.queue:
            if sealed.is_durable:
                self._ledger.spooled -= sealed.points_count
            sealed.is_durable = sealed.is_written = False
        return list(self.queue)

    def note_durable(self, sealed: SealedBatch) -> None:
        """The spool holds a batch of this lane now."""
        self.durable_seq = max(self.durable_seq, sealed.seq)
        if not sealed.is_settled and not sealed.is_durable:
            sealed.is_durable = True
            self._ledger.spooled += sealed.points_count

    # --- answers ---------------------------------------------------------------------------
    def check(self, reply: BatchReply, acked: int | None) -> None:
        """Check an answer before anything of the request is applied.

        Raises:
            ProtocolError: it names a batch that was not sent; such an answer is never permission
                to delete.
        """
        where = f"lane {self.number}"
        if not 1 <= reply.seq <= self.sent_seq:
            raise ProtocolError(f"{where}: seq {reply.seq} answered, {self.sent_seq} was the last")
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
        sealed.is_settled = True
        self.queued_bytes -= len(sealed.frame)
        self.waiting_points -= sealed.points_count
        if sealed.is_durable:
            self._ledger.spooled -= sealed.points_count
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
        lost = {reason: poison.points_count} if poison.points_count else {}
        self._put_first(self._stand_in(poison.seq, lost, poison.chain_digest))

    def _put_first(self, sealed: SealedBatch) -> None:
        self.queue.appendleft(sealed)
        self.queued_bytes += len(sealed.frame)

    # --- a server that went back in time -----------------------------------------------------
    def can_rewind(self, seq: int) -> bool:
        """Whether everything from `seq` on is still in memory."""
        return seq > len(self._forgotten)

    def rewind(self, seq: int) -> None:
        """Queue everything from `seq` on again: the server does not have it any more.

        Batches that were forgotten meanwhile become declarations of loss, so that the lane can
        go on past the hole.
        """
        while self.retained and self.retained[-1].seq >= seq:
            sealed = self.retained.pop()
            self.retained_bytes -= len(sealed.frame)
            self._take_back(sealed)
        for missing in range(min(len(self._forgotten), self.acked_seq), seq - 1, -1):
            points = self._forgotten.pop()
            digest = self._forgotten_digests.pop()
            self._ledger.committed -= points
            self._ledger.lost[ROLLBACK] += points
            self._put_first(self._stand_in(missing, {ROLLBACK: points} if points else {}, digest))

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
        again = replace(
            sealed,
            points_count=points_count,
            committed=0,
            counts={},
            is_written=False,
            is_durable=False,
            is_settled=False,
        )
        self._put_first(again)
        self.taken_back.append(again)
        self.waiting_points += points_count

    def forget(self, *, before_s: float, bytes_max: int) -> None:
        """Drop retained batches acknowledged before `before_s`, and the oldest beyond the bound."""
        while self.retained and (
            self.retained[0].acked_s < before_s or self.retained_bytes > bytes_max
        ):
            sealed = self.retained.popleft()
            self.retained_bytes -= len(sealed.frame)
            self._forgotten.append(sealed.committed)
            self._forgotten_digests.append(sealed.chain_digest)
            assert len(self._forgotten) == sealed.seq

    def abandon(self) -> int:
        """Give up what is not acknowledged; returns how many points that loses."""
        points, self.waiting_points = self.waiting_points, 0
        for sealed in self.queue:
            sealed.is_settled = True
        self.queue.clear()
        self._declared.clear()
        self.queued_bytes = 0
        self.loaded_seq = self.sealed_seq
        self._loaded_total = self._sealed_total
        return points


def unsealed(sealed: SealedBatch) -> Batch:
    """The batch again, to be sealed at another place of a chain."""
    return decode_batch(decode_frame(sealed.frame))


_SETTLED: Final = (BatchStatus.STORED, BatchStatus.DUPLICATE, BatchStatus.REJECTED)
