"""The thread for blocking file calls, and the hop to it from the event loop.

An executor of the standard library refuses work once the interpreter is on its way out, and a new
thread cannot be started then; so this one is started with the engine and takes work to the end.
It is a daemon: a frozen disk keeps nobody from exiting.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

_Result = TypeVar("_Result")
_THREAD_NAME: Final = "metrana-io"


class Hop(Protocol):
    """Runs a blocking call elsewhere and awaits its result; one after the other, in order."""

    def __call__(self, call: Callable[[], _Result]) -> Awaitable[_Result]:
        """Await what `call()` returns or raises."""
        ...


class IoThread(concurrent.futures.Executor):
    """One thread that does what it is given, in order. Never shut down."""

    def __init__(self) -> None:
        # Imported here, by the thread that starts the engine: a fork in the middle of an import
        # on the engine's own thread would leave the child half a module for ever.
        from aiofiles import os as aiofiles_os

        self._wrap = aiofiles_os.wrap
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=_THREAD_NAME, daemon=True)
        self._thread.start()

    def submit(
        self, call: Callable[..., _Result], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[_Result]:
        """See Executor."""
        future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(work)
        return future

    def _run(self) -> None:
        while True:
            work = self._work.get()
            work()
            del work  # holds the result until the next one comes

    async def hop(self, call: Callable[[], _Result]) -> _Result:
        """Await what `call()` returns or raises on this thread. See Hop."""
        result: _Result = await self._wrap(call)(executor=self)
        return result
