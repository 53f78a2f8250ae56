"""The end of a writer: everything stored or kept, the rest counted, and the last word said."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from metrana_async.delivery.outbox import Outbox
from metrana_async.engine.clock import Clock
from metrana_async.engine.inbox import Inbox
from metrana_async.errors import MetranaError
from metrana_async.membership import REPLY_TIMEOUT_S, Membership
from metrana_async.settling import LEAVE_RESERVE_S, Settling
from metrana_async.statistics import Ledger, Statistics
from metrana_async.wire.messages import LeaveRequest


class Departing(Protocol):
    """What a writer lets its end see."""

    clock: Clock
    inbox: Inbox
    membership: Membership
    settling: Settling

    @property
    def writer_id(self) -> str:
        """32 hex digits."""
        ...

    def counters(self) -> dict[str, int]:
        """The ledger and the notices, as heartbeats carry them."""
        ...

    async def flush(self, mark: int, timeout_s: float) -> Statistics:
        """Have everything up to `mark` stored, or kept where no server answers."""
        ...

    def lose_unspooled(self, reason: str) -> None:
        """Count what is in memory only as lost."""
        ...

    def on_trouble(self, error: MetranaError) -> None:
        """Tell of a failure."""
        ...


async def depart(
    writer: Departing, outbox: Outbox, ledger: Ledger, leave: LeaveRequest, deadline_s: float
) -> tuple[LeaveRequest, bool]:
    """Flush, then leave the run; again where it turns out that the server went back in time.

    Returns the last word, and whether the server has heard it.
    """
    while True:
        leave = await _settle(writer, leave, deadline_s)
        if ledger.spooled:
            return leave, False
        left_s = min(REPLY_TIMEOUT_S, writer.settling.leave_s(deadline_s))
        has_left = await writer.membership.leave(leave, left_s)
        if outbox.is_empty() and not writer.membership.is_unsettled:
            return leave, has_left
        if writer.settling.is_over(deadline_s):
            await writer.settling.keep_late()
            return leave, False


async def _settle(writer: Departing, leave: LeaveRequest, deadline_s: float) -> LeaveRequest:
    left_s = deadline_s - writer.clock.monotonic_s() - LEAVE_RESERVE_S
    try:
        await writer.flush(writer.inbox.appended_count, max(0.0, left_s))
    except MetranaError as error:
        writer.on_trouble(error)
        await writer.settling.keep_late()
    writer.lose_unspooled("closed")
    return replace(leave, writer_id=writer.writer_id, counters=writer.counters())
