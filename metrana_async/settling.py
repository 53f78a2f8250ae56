"""Waiting until what was logged is stored, or at least on the disk for good. Engine loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from metrana_async.delivery.outbox import Outbox
from metrana_async.delivery.sender import Sender
from metrana_async.delivery.spooling import Spooler
from metrana_async.engine.clock import Clock
from metrana_async.engine.inbox import Inbox
from metrana_async.engine.pulse import Pulse
from metrana_async.engine.supervisor import Supervisor
from metrana_async.errors import MetranaError, WaitTimeoutError
from metrana_async.membership import REPLY_TIMEOUT_S, Membership
from metrana_async.pump import Pump
from metrana_async.statistics import Statistics

OUTAGE_S: Final = 3.0
"""Seconds of failing requests after which a flush is content with the disk."""

PROBE_S: Final = 1.0
"""Seconds that one more request gets in an outage before a flush is content with the disk."""

LEAVE_RESERVE_S: Final = 0.3
"""What a flush leaves for its last question, whatever its deadline."""
KEEP_RESERVE_S: Final = 0.3
"""What a flush leaves for the disk when the server takes all its time."""
KEEP_LATE_S: Final = 0.2
"""What a close that is out of time allows itself for the disk."""

LAST_CHANCE_S: Final = 0.5
"""How long a close waits for one more attempt to join a server that has not answered yet."""

_LOOK_EVERY_S: Final = 0.1
_KEEP_AGAIN_S: Final = 0.05


class Waiting(Protocol):
    """What a writer lets those see who wait for it."""

    inbox: Inbox
    clock: Clock
    progress: Pulse
    spooler: Spooler | None
    membership: Membership
    supervisor: Supervisor

    @property
    def run_name(self) -> str:
        """The run's name."""
        ...

    def statistics(self) -> Statistics:
        """The ledger now."""
        ...

    def counters(self) -> dict[str, int]:
        """The ledger and the notices, as heartbeats carry them."""
        ...


class Settling:
    """The waits of one writer."""

    def __init__(self, writer: Waiting, outbox: Outbox, sender: Sender, pump: Pump) -> None:
        self._writer = writer
        self._outbox = outbox
        self._sender = sender
        self._pump = pump
        self._clock = writer.clock
        self.is_hurried = False
        """Whether nobody waits for the server any more."""

    def hurry(self) -> None:
        """Wait for no server any more: what it does not have yet stays on the disk."""
        self.is_hurried = True
        self._writer.progress.beat()

    def leave_s(self, deadline_s: float) -> float:
        """Seconds that saying goodbye may take."""
        left_s = 0.0 if self.is_hurried else deadline_s - self._clock.monotonic_s()
        return max(LEAVE_RESERVE_S, left_s)

    def is_over(self, deadline_s: float) -> bool:
        """Whether nobody waits for the server any more."""
        return self.is_hurried or self._clock.monotonic_s() >= deadline_s

    async def last_chance(self, limit_s: float) -> None:
        """Ask a server that has not answered yet once more, and wait a little for it."""
        membership = self._writer.membership
        failed_before = membership.failures_count
        membership.hurry()
        deadline_s = self._clock.monotonic_s() + min(limit_s, LAST_CHANCE_S)
        while not membership.is_admitted and membership.failures_count == failed_before:
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0 or self.is_hurried:
                return
            await self._writer.progress.wait(min(left_s, _LOOK_EVERY_S))

    async def keep_late(self) -> None:
        """For a close that is out of time: what the disk takes in a moment is not lost."""
        if self._writer.spooler is not None:
            with contextlib.suppress(MetranaError):
                await self.failover(self._writer.inbox.appended_count, KEEP_LATE_S)

    async def flush(self, mark: int, timeout_s: float) -> None:
        """Wait until everything up to `mark` is stored, or on the disk where no server answers.

        Raises:
            WaitTimeoutError: it is neither after `timeout_s`.
            MetranaError: the cause, when a task has died.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        await self.taken(mark, timeout_s)
        marks = self._outbox.marks()
        self._sender.hurry()
        while True:
            if self._writer.spooler is None:
                await self._until(lambda: self._outbox.has_reached(marks), deadline_s, timeout_s)
            elif not await self._is_delivered(marks, deadline_s):
                await self._keep(marks, deadline_s, timeout_s)
                return
            left_s = max(LEAVE_RESERVE_S, deadline_s - self._clock.monotonic_s())
            await self._writer.membership.beat(
                self._writer.counters(), min(REPLY_TIMEOUT_S, left_s)
            )
            # The answer may have told that the server went back in time.
            if not await self._is_settled(deadline_s, timeout_s):
                continue
            if self._outbox.has_reached(marks):
                return

    async def _is_settled(self, deadline_s: float, timeout_s: float) -> bool:
        """Whether the server has said what it has; a moment later otherwise.

        Raises:
            WaitTimeoutError: there is no time left to ask again.
        """
        if not self._writer.membership.is_unsettled:
            return True
        if self.is_over(deadline_s):
            raise WaitTimeoutError(
                f"run {self._writer.run_name!r}: the server was started again, perhaps on an older "
                f"store, and has not said within {timeout_s:g} s what it has"
            )
        await asyncio.sleep(_LOOK_EVERY_S)
        return False

    async def failover(self, mark: int, timeout_s: float) -> None:
        """Wait until everything up to `mark` is on the disk, or stored meanwhile.

        Raises:
            WaitTimeoutError: it is neither after `timeout_s`.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        await self.taken(mark, timeout_s)
        await self._keep(self._outbox.marks(), deadline_s, timeout_s)

    async def taken(self, mark: int, timeout_s: float) -> None:
        """Wait until everything up to `mark` has left the inbox.

        Raises:
            WaitTimeoutError: it has not after `timeout_s`.
        """
        inbox, deadline_s = self._writer.inbox, self._clock.monotonic_s() + timeout_s
        await self._until(lambda: inbox.taken_count >= mark, deadline_s, timeout_s)

    async def _is_delivered(self, marks: Mapping[int, int], deadline_s: float) -> bool:
        """Wait for the server as long as that makes sense; whether everything is stored.

        In an outage that is until one more request has failed: it may be over.
        """
        give_up_s = deadline_s - KEEP_RESERVE_S
        probe_s = self._clock.monotonic_s() + PROBE_S
        attempts_count = self._sender.attempts_count
        while not self._outbox.has_reached(marks):
            self._raise_failure()
            left_s = give_up_s - self._clock.monotonic_s()
            is_out = self._sender.outage_s >= OUTAGE_S and (
                self._sender.has_failed_since(attempts_count)
                or self._clock.monotonic_s() >= probe_s
            )
            is_hopeless = is_out or self.is_hurried or left_s <= 0
            if is_hopeless or not self._writer.membership.is_admitted:
                return False
            await self._writer.progress.wait(min(left_s, _LOOK_EVERY_S))
        return True

    async def _keep(self, marks: Mapping[int, int], deadline_s: float, timeout_s: float) -> None:
        pause_s = _KEEP_AGAIN_S
        while not await self._is_spooled(deadline_s) and not self._outbox.has_kept(marks):
            self._raise_failure()
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            # Somebody waits: a disk that refused once is asked again before its next turn.
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 1.0)
        await self._until(lambda: self._outbox.has_kept(marks), deadline_s, timeout_s)

    async def _is_spooled(self, deadline_s: float) -> bool:
        """Have everything that waits written and synced; False when the disk refuses."""
        spooler = self._writer.spooler
        assert spooler is not None
        keeping = asyncio.ensure_future(spooler.keep())
        left_s = max(0.05, deadline_s - self._clock.monotonic_s())
        await asyncio.wait({keeping}, timeout=left_s)
        if keeping.done():
            return keeping.result()
        # A disk that hangs is waited for by the thread that called it, not by us.
        keeping.cancel()
        return True

    async def _until(
        self, is_reached: Callable[[], bool], deadline_s: float, timeout_s: float
    ) -> None:
        self._pump.wake()
        while True:
            self._raise_failure()
            if is_reached():
                return
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                in_flight = self._writer.statistics().in_flight
                raise WaitTimeoutError(
                    f"run {self._writer.run_name!r}: {in_flight} points are not stored after "
                    f"{timeout_s:g} s; they stay in flight"
                )
            await self._writer.progress.wait(left_s)

    def _raise_failure(self) -> None:
        if self._writer.supervisor.failure is not None:
            raise self._writer.supervisor.failure
