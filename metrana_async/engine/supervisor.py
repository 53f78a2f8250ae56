"""Tasks live here: a task that dies stops intake, and the next call raises its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from metrana_async.errors import InternalError, MetranaError


class Supervisor:
    """The tasks of one writer. Lives on the engine loop.

    Cancellation is not a death; any other exception is. `on_death` is called once, with the
    cause as a MetranaError (an unknown fault is an InternalError that keeps it as `__cause__`).
    """

    def __init__(self, on_death: Callable[[MetranaError], None]) -> None:
        self._on_death = on_death
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: MetranaError | None = None

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a supervised task."""
        task = asyncio.get_running_loop().create_task(self._watch(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first turn would leave the work unawaited.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _watch(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except MetranaError as error:
            self._report(error)
        except Exception as error:  # the supervisor: every unknown fault becomes a cause
            failure = InternalError(f"task {name!r} died: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._report(failure)

    def _report(self, failure: MetranaError) -> None:
        if self.failure is None:
            self.failure = failure
            self._on_death(failure)

    async def stop(self) -> None:
        """Cancel every task and wait until they are gone. Idempotent."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
