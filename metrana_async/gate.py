"""The overflow policy: what happens to a call that finds the inbox full."""

from __future__ import annotations

from metrana_async.engine.inbox import Inbox
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
    =================  ==========================================================================
    """

    def __init__(self, policy: str, *, is_blocking: bool) -> None:
        self._policy = policy
        self._is_blocking = is_blocking

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
        if self._policy == "block":
            if inbox.has_room(points, nbytes, times=2):
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
        return RoomWait(inbox) if self._policy == "block" and inbox.is_over() else READY
