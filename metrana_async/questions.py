"""Questions of callers that only the engine, or the server, can answer. Engine loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from metrana_async.errors import MetranaError
from metrana_async.membership import REPLY_TIMEOUT_S, Membership
from metrana_async.seeding import Seeding
from metrana_async.settings import Settings
from metrana_async.settling import Settling
from metrana_async.statistics import Ledger
from metrana_async.writers.collect import SeriesWriters
from metrana_async.writers.registry import SeriesRegistry

_Answer = TypeVar("_Answer")


class Asked(Protocol):
    """What a writer lets those see who ask it."""

    settings: Settings
    registry: SeriesRegistry
    membership: Membership
    seeding: Seeding

    def on_trouble(self, error: MetranaError) -> None:
        """Tell of a failure that changes nothing."""
        ...


class Questions:
    """Answers from what one writer has numbered so far, and from the server's seeds."""

    def __init__(
        self, writer: Asked, series: SeriesWriters, ledger: Ledger, settling: Settling
    ) -> None:
        self._writer = writer
        self._series = series
        self._ledger = ledger
        self._settling = settling
        self._dropped_seen = 0
        self._counted: dict[str, int] = {}

    async def ask(self, question: Callable[[SeriesWriters], _Answer], mark: int) -> _Answer:
        """Answer from the engine's state, once everything up to `mark` is in it."""
        await self._writer.seeding.wait()
        await self._settling.taken(mark, REPLY_TIMEOUT_S)
        return question(self._series)

    async def reserve_episodes(self, env_id: str, count: int, timeout_s: float) -> int:
        """Lease the next `count` episodes of an environment from the server; returns the first.

        A disabled run has no server and nobody to share with: it counts by itself.

        Raises:
            MetranaError: the server cannot be asked, or refuses.
        """
        if not self._writer.settings.is_disabled:
            return await self._writer.membership.reserve_episodes(env_id, count, timeout_s)
        first = self._counted.get(env_id, 0)
        self._counted[env_id] = first + count
        return first

    async def last_of_environment(self, env_no: int, mark: int) -> tuple[int | None, int | None]:
        """Highest rl_step and episode of an environment; points known to be dropped do not count.

        Which points of a batch were dropped is known to the server only, so it is asked again
        once some were. Without an answer the dropped ones are still counted in.
        """
        dropped = self._ledger.dropped_points
        if dropped != self._dropped_seen:
            aside = self._series.set_environments_aside()
            try:
                await self._settling.flush(mark, REPLY_TIMEOUT_S)
                seeds = await self._writer.membership.seeds()
            except MetranaError as error:
                self._series.add_environments(*aside)
                self._writer.on_trouble(error)
            else:
                self._writer.registry.reseed_environments(seeds)
                self._dropped_seen = dropped
        return await self.ask(lambda series: series.last_rl_step_and_episode(env_no), mark)
