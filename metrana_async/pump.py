"""The task that moves what waits in the inbox into sealed batches. Engine loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from metrana_async.delivery.outbox import Outbox
from metrana_async.engine.inbox import Inbox
from metrana_async.engine.loop_thread import give_way
from metrana_async.engine.pulse import Pulse
from metrana_async.intake import Intake

TICK_S: Final = 0.1
"""The pump's beat while there is something to log: about ten requests a second."""
TICK_OUT_S: Final = 0.2
"""The same while nobody takes the batches: each goes to the disk, and fewer are more compact."""

OUTBOX_BYTES: Final = 64 << 20
"""Sealed and unacknowledged bytes in memory from which the pump leaves the rest in the inbox."""


class Sealing(Protocol):
    """What a pump asks of its writer."""

    inbox: Inbox
    progress: Pulse

    def is_out(self) -> bool:
        """Whether nobody takes the batches now."""
        ...

    def before_sealing(self) -> None:
        """Batches are about to be sealed."""
        ...

    def on_sealed(self) -> None:
        """Batches were sealed."""
        ...

    def shed(self) -> None:
        """The outbox is full; called on every beat while it is."""
        ...


class Pump:
    """Seals on a beat while points come, and sleeps until it is woken when none do."""

    def __init__(self, writer: Sealing, intake: Intake, outbox: Outbox) -> None:
        self._writer = writer
        self._inbox = writer.inbox
        self._intake = intake
        self._outbox = outbox
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Look into the inbox now."""
        self._wanted.set()

    async def run(self, until_known: Callable[[], Awaitable[None]]) -> None:
        """Pump for ever, once `until_known` says that numbers go on where the run's ended."""
        await until_known()
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            if self._drain():
                if self._intake.has_more:
                    give_way()
                    await asyncio.sleep(0)
                    continue
                # While points keep coming nobody has to wake us: look again after a beat.
                tick_s = TICK_OUT_S if self._writer.is_out() else TICK_S
                timer = loop.call_later(tick_s, self._wanted.set)
                await self._wanted.wait()
                timer.cancel()
            elif self._is_full:
                await self._writer.progress.wait(TICK_S)
            elif self._inbox.arm():
                await self._wanted.wait()

    @property
    def _is_full(self) -> bool:
        return self._outbox.queued_bytes >= OUTBOX_BYTES

    def _drain(self) -> bool:
        """Seal a part of what waits; False when nothing waited or the outbox is full."""
        if self._is_full:
            self._writer.shed()
            return False
        if not self._intake.seal(self._writer.before_sealing):
            return False
        self._writer.on_sealed()
        return True
