"""What a run held before this writer joined it, known before anything is numbered. Engine loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metrana_async.engine.loop_thread import give_way
from metrana_async.engine.supervisor import Supervisor
from metrana_async.errors import MetranaError
from metrana_async.membership import Membership
from metrana_async.wire.messages import OpenReply
from metrana_async.writers.registry import SeriesRegistry


class Seeding:
    """Takes in a run's seeds: with the admission, or in parts behind it."""

    def __init__(
        self,
        registry: SeriesRegistry,
        membership: Membership,
        on_seeds: Callable[[], None],
        on_trouble: Callable[[MetranaError], None],
    ) -> None:
        """Make the seeding of one writer.

        Args:
            registry: takes the seeds in.
            membership: asks for those that follow.
            on_seeds: called whenever some were taken in. Callers that go by a remembered number
                must look again: it may be pinned otherwise.
            on_trouble: told when the server does not answer; then nothing more is waited for.
        """
        self._registry = registry
        self._membership = membership
        self._on_seeds = on_seeds
        self._on_trouble = on_trouble
        self._is_done = asyncio.Event()
        self._is_done.set()
        self._do_follow = False

    def admit(self, reply: OpenReply) -> None:
        """Take in what came with an admission."""
        self._registry.seed(reply.seeds)
        self._on_seeds()
        self._do_follow = reply.seeds_follow

    def start(self, supervisor: Supervisor, *, is_late: bool = False) -> None:
        """Ask for the seeds that follow the admission; `wait` waits for them unless `is_late`."""
        if self._do_follow:
            if not is_late:
                self._is_done.clear()
            supervisor.spawn("seeds", self._ask())

    async def _ask(self) -> None:
        try:
            async for seeds in self._membership.seeds_that_follow():
                self._registry.seed(seeds)
                self._on_seeds()
                give_way()
        except MetranaError as error:
            self._on_trouble(error)
        finally:
            self._is_done.set()

    async def wait(self) -> None:
        """Return when all is known that a joining writer may know, or nobody can be asked."""
        await self._is_done.wait()
