"""Tell every waiting task that something changed. Lives on one event loop."""

from __future__ import annotations

import asyncio


class Pulse:
    """A condition without a lock: waiters look again after every beat."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def beat(self) -> None:
        """Wake everyone who waits now."""
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return after the next beat, or after `timeout_s` seconds. Cancel-safe."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        # asyncio.wait leaves the shared future alone on time-out and cancellation.
        await asyncio.wait({self._next}, timeout=max(0.0, timeout_s))
