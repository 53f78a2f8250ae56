"""The overflow policy: what happens to a call that finds the inbox full."""

from __future__ import annotations

from collections.abc import Callable

from metrana_async.engine.inbox import Inbox
from metrana_async.engine.loop_thread import running_engine
from metrana_async.errors import QueueFullError
from metrana_async.waiting import READY, ROOM_TIMEOUT_S, Pending, RoomWait


class Gate:
    """Applies one policy to calls on an inbox. Thread-safe: it keeps no state.

    =================  ==========================================================================
    policy             a call that finds no room
    =================  ==========================================================================
    block              is taken, up to twice the bounds, and its caller waits; beyond that it
                       raises where nobody waits, or waits first where callers block
    drop_new           is dropped and counted
    raise              raises QueueFullError and has no effect
    spool_then_raise   like block while the disk takes what the server does not, else like raise
    =================  ==========================================================================

    A finalizer that runs on the engine's own thread is taken under "block" and never waits: the
    thread would wait for itself.
    """

    def __init__(
        self, policy: str, *, is_blocking: bool, can_spool: Callable[[], bool] = lambda: False
    ) -> None:
        self._policy = policy
        self._is_blocking = is_blocking
        self._can_spool = can_spool

    @property
    def _waits(self) -> bool:
        return self._policy == "block" or (self._policy == "spool_then_raise" and self._can_spool())

    def admits(self, inbox: Inbox, points: int, nbytes: int) -> bool:
        """Whether the call is to be appended; False = it was dropped and counted.

        Raises:
            QueueFullError: no room, and the policy neither waits nor drops.
        """
        if inbox.has_room(points, nbytes):
            return True
        if self._policy == "drop_new":
            inbox.count_dropped(points)
            return False
        if self._waits:
            if inbox.has_room(points, nbytes, times=2) or _is_engine():
                return True
            if self._is_blocking and inbox.wait_for_room(ROOM_TIMEOUT_S):
                return True
        raise QueueFullError(
            f"no room for {points} points: {inbox.points_count} wait in the inbox and the server "
            "does not keep up",
            hint=f"the policy is backpressure_strategy={self._policy!r}",
        )

    def wait(self, inbox: Inbox) -> Pending:
        """What the caller of an appended call is to wait for."""
        is_waiting = inbox.is_over() and self._waits and not _is_engine()
        return RoomWait(inbox) if is_waiting else READY


def _is_engine() -> bool:
    thread = running_engine()
    return thread is not None and thread.is_own_thread
