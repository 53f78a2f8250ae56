"""From the inbox to the outbox, and the ledger that balances all the way. Engine thread.

accepted = in_flight + spooled + committed + rejected(reason) + lost(reason)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from metrana_async.delivery.outbox import Outbox
from metrana_async.engine.clock import Clock
from metrana_async.engine.inbox import Inbox
from metrana_async.statistics import Ledger, Statistics
from metrana_async.writers.collect import SeriesWriters

SEALED_ITEMS: Final = 8192
SEALED_BYTES: Final = 1 << 20
"""What is sealed at one go. More holds the interpreter for longer than callers bear, and memory."""


class Intake:
    """Seals what callers logged, and knows where every point is.

    Attributes:
        published: the ledger as of the last `publish`; may be read from any thread.
    """

    def __init__(
        self,
        inbox: Inbox,
        series: SeriesWriters,
        outbox: Outbox,
        ledger: Ledger,
        clock: Clock,
    ) -> None:
        self.published = Statistics()
        self._inbox = inbox
        self._series = series
        self._outbox = outbox
        self._ledger = ledger
        self._clock = clock
        self._dropped_points = 0
        # Losses that no sealed batch has declared yet.
        self._undeclared: Counter[str] = Counter()
        # Points between inbox and lanes: not 0 only when the pump dies on them.
        self._unsealed_points = 0
        # Points on the disk that no lane waits for any more: they are left to whoever delivers.
        self._parted_points = 0

    @property
    def has_more(self) -> bool:
        """Whether the last `seal` left something behind because it was enough for one time."""
        return self._inbox.is_cut

    def seal(self, before_sealing: Callable[[], None]) -> bool:
        """Seal what waits in the inbox, up to about a batch; False when nothing waited."""
        before = self._inbox.taken_points
        items = self._inbox.take(SEALED_ITEMS, SEALED_BYTES)
        self._unsealed_points = self._inbox.taken_points - before
        self._count_dropped()
        if not items and not self._undeclared:
            return False
        lost, self._undeclared = dict(self._undeclared), Counter()
        before_sealing()
        self._outbox.seal(self._series.collect(items), lost, self._clock.monotonic_s())
        self._unsealed_points = 0
        return True

    def shed(self, reason: str) -> int:
        """Lose what waits in the inbox, counted; declared with the next batch that is sealed."""
        before = self._inbox.taken_points
        self._inbox.take()
        points = self._inbox.taken_points - before
        self._lose(reason, points)
        return points

    def give_up(self, reason: str) -> int:
        """Count what is in memory only as lost: nobody will try any more. May be repeated."""
        waiting = self._inbox.points_count
        self._inbox.take()
        self._count_dropped()
        points = waiting + self._unsealed_points + self._outbox.abandon() - self._awaited_spooled
        self._unsealed_points = 0
        self._parted_points = self._ledger.spooled
        self._ledger.lost.update({reason: points} if points else {})
        return points

    def give_up_spooled(self) -> None:
        """What is on the disk is nobody's any more either; before `give_up`, which counts it."""
        self._ledger.spooled = 0

    def publish(self) -> Statistics:
        """Make the ledger visible."""
        self._ledger.accepted = self._inbox.taken_points + self._dropped_points
        in_flight = self._outbox.waiting_points + self._unsealed_points - self._awaited_spooled
        self.published = self._ledger.snapshot(in_flight=in_flight)
        return self.published

    @property
    def _awaited_spooled(self) -> int:
        return self._ledger.spooled - self._parted_points

    def _count_dropped(self) -> None:
        dropped = self._inbox.dropped_points - self._dropped_points
        self._dropped_points += dropped
        self._lose("drop_new", dropped)

    def _lose(self, reason: str, points: int) -> None:
        if points:
            self._ledger.lost[reason] += points
            self._undeclared[reason] += points
