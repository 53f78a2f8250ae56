"""What a logging call returns: an awaitable that only carries backpressure.

The work of a call is done when it returns; a forgotten ``await`` loses nothing and warns nothing.
`READY` is one shared object for every call that need not wait; a `RoomWait` waits until the inbox
is within its bounds again. Both work with ``await``, ``create_task``, ``gather`` and ``wait_for``,
under asyncio and trio, and block a plain thread with `block()`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Coroutine, Generator, Iterator
from types import TracebackType
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel

from metrana_async.engine.inbox import Inbox
from metrana_async.errors import WaitTimeoutError

_Result = TypeVar("_Result")

ROOM_TIMEOUT_S: Final = 900.0
_YIELD_EVERY_S: Final = 0.001
_POLL_S: Final = 0.005
# Engine work keeps its own deadline; this much more is only for an engine that hangs.
_GRACE_S: Final = 5.0


class _LastYield(threading.local):
    at_s: float = 0.0


_last_yield = _LastYield()
_NOTHING: Final[Iterator[Any]] = iter(())


class Pending(Coroutine[Any, Any, None]):
    """Base of what logging calls return; awaiting the base itself waits for nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        """Continue at once, or after one turn of the loop when a millisecond has passed.

        So that a loop which does nothing but await logging calls cannot starve its event loop.
        """
        now_s = time.monotonic()
        if now_s - _last_yield.at_s < _YIELD_EVERY_S:
            return _NOTHING  # type: ignore[return-value]  # an exhausted iterator is enough
        _last_yield.at_s = now_s
        return anyio.lowlevel.checkpoint().__await__()

    def send(self, value: Any) -> Any:
        """Finish: as a task of its own it has had its turn of the loop already."""
        del value
        raise StopIteration

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Raise what is thrown in: there is nothing to clean up."""
        del trace
        if isinstance(value, BaseException):
            raise value
        raise kind

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def block(self) -> None:
        """Wait in a plain thread."""


READY: Final = Pending()
"""Nothing to wait for."""


class RoomWait(Pending):
    """Waits until the inbox is within its bounds. The block of the call is in already."""

    __slots__ = ("_inbox", "_running")

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._running: Coroutine[Any, Any, None] | None = None

    async def _wait(self) -> None:
        deadline_s = time.monotonic() + ROOM_TIMEOUT_S
        while self._inbox.is_over():
            if time.monotonic() > deadline_s:
                raise self._timeout()
            await anyio.sleep(_POLL_S)

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait cooperatively. Cancelling takes nothing back."""
        return self._wait().__await__()

    def send(self, value: Any) -> Any:
        """Run as a task's coroutine."""
        if self._running is None:
            self._running = self._wait()
        return self._running.send(value)

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Pass on what is thrown in, e.g. a cancellation."""
        if self._running is None:
            return super().throw(kind, value, trace)
        if isinstance(value, BaseException):
            return self._running.throw(value)
        return self._running.throw(kind)

    def close(self) -> None:
        """Stop waiting."""
        if self._running is not None:
            self._running.close()

    def block(self) -> None:
        """Wait in a plain thread.

        Raises:
            WaitTimeoutError: no room within `ROOM_TIMEOUT_S`; the block stays in.
        """
        if not self._inbox.wait_for_room(ROOM_TIMEOUT_S):
            raise self._timeout()

    def _timeout(self) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"the inbox did not empty within {ROOM_TIMEOUT_S:g} s "
            f"({self._inbox.points_count} points wait)"
        )


async def arrive(future: concurrent.futures.Future[_Result], timeout_s: float) -> _Result:
    """Wait for engine work under asyncio or trio. Cancelling stops the wait, not the work.

    Raises:
        WaitTimeoutError: the engine did not keep the deadline itself.
    """
    limit_s = timeout_s + _GRACE_S
    if _is_asyncio():
        waiting = asyncio.shield(asyncio.wrap_future(future))
        try:
            return await asyncio.wait_for(waiting, limit_s)
        except asyncio.TimeoutError:
            if future.done():
                return future.result()
            raise hangs(limit_s) from None
    deadline_s = time.monotonic() + limit_s
    while not future.done():
        if time.monotonic() > deadline_s:
            raise hangs(limit_s)
        await anyio.sleep(_POLL_S)
    return future.result()


def _is_asyncio() -> bool:
    # A task, not just a loop: trio as a guest runs inside an asyncio loop without being a task.
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def hangs(limit_s: float) -> WaitTimeoutError:
    """The error of a wait that the engine did not end in time."""
    return WaitTimeoutError(f"the engine thread gave no answer within {limit_s:g} s")
