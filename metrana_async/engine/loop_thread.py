"""The engine: one daemon thread with its own event loop per process, started on first use.

The bridge between threads is `submit`: it hands a coroutine to the loop and gives back a
`concurrent.futures.Future`. It refuses when the engine is closed and from the loop's own thread
(waiting there would wait for itself). After a fork the child has no such thread: `engine()` makes
a fresh one, and everything inherited is abandoned without being closed.
"""

from __future__ import annotations

import asyncio

# With its thread pools, which cannot be imported any more once the main thread has ended.
import concurrent.futures.thread
import contextlib
import contextvars
import errno
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from metrana_async.engine.io_thread import IoThread
from metrana_async.errors import InternalError

_Result = TypeVar("_Result")

# A fork in the middle of an import leaves the child a half-made module for ever. So whatever the
# engine thread would import on first use is imported by the thread that starts it.
_IMPORTED_AHEAD: Final = (
    "numpy.ma",
    "encodings.idna",
    "linecache",
    "traceback",
    "tracemalloc",
    "metrana_async.transport.http",
)
_START_TIMEOUT_S: Final = 10.0
_THREAD_NAME: Final = "metrana-engine"
_WAKE_UP_S: Final = 50e-6


class _Loop(asyncio.SelectorEventLoop):
    """A loop of our own: the caller's event loop policy is neither used nor changed."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        """Make a loop.

        Args:
            on_lost: called, on the thread that would wake the loop, when it cannot be woken any
                more because the program has closed its descriptors.
        """
        super().__init__()
        self._on_lost = on_lost
        self._bell = self._bell_now()

    def _bell_now(self) -> tuple[int, int] | None:
        """Which file has the number that wakes this loop; None once the loop is closed."""
        bell: socket.socket | None = self._csock  # type: ignore[attr-defined]
        if bell is None:
            return None
        found = os.fstat(bell.fileno())
        return found.st_dev, found.st_ino

    def _write_to_self(self) -> None:
        """Wake the loop, but never by a byte into a file that the program has opened since.

        asyncio passes over a failure here: the caller would not learn that nobody takes any more.
        """
        try:
            is_ours = self._bell_now() in (None, self._bell)
        except OSError as error:
            is_ours = error.errno != errno.EBADF
        if is_ours:
            super()._write_to_self()  # type: ignore[misc]
        else:
            self._on_lost()

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolve a name, also while the program ends.

        Executors take nothing more then; the engine thread itself may block, since nobody but
        the farewell waits for it.
        """
        try:
            return await super().getaddrinfo(
                host, port, family=family, type=type, proto=proto, flags=flags
            )
        except RuntimeError:
            return socket.getaddrinfo(host, port, family, type, proto, flags)


class LoopThread:
    """An event loop in its own daemon thread; beside it, `io` makes the blocking file calls."""

    def __init__(self) -> None:
        for name in _IMPORTED_AHEAD:
            importlib.import_module(name)
        self.io = IoThread()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        # Never the caller's: anyio and others keep there which kind of event loop it runs on.
        self._context = contextvars.Context()
        # Whoever waits for these must not wait for ever when the loop dies.
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._failure: InternalError | None = None
        self._thread = threading.Thread(target=self._run, name=_THREAD_NAME, daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_TIMEOUT_S):
            raise InternalError(f"the engine thread did not start within {_START_TIMEOUT_S} s")

    def _run(self) -> None:
        loop = _Loop(self._lose_descriptors)
        self._loop = loop
        loop.call_soon(self._ready.set)
        try:
            loop.run_forever()
        except OSError as error:
            self._keep_everything(error)
        finally:
            loop.close()
            self._release_waiters()

    def _lose_descriptors(self, error: OSError | None = None) -> None:
        """Take nothing more: the program has closed our descriptors. Any thread; idempotent."""
        if self._failure is None:
            cause = f" ({error})" if error is not None else ""
            self._failure = InternalError(
                f"the program has closed this library's file descriptors{cause}"
            )
        self._release_waiters()
        for callback in _loss_callbacks:
            callback(self._failure)

    def _keep_everything(self, error: OSError) -> None:
        """Never return: the program may use the numbers of our descriptors itself by now.

        Whatever would free what this thread holds would close those.
        """
        self._lose_descriptors(error)
        assert self._failure is not None
        for callback in _death_callbacks:
            callback(self._failure)
        while True:
            threading.Event().wait()

    def _release_waiters(self) -> None:
        failure = self._failure or InternalError("the engine thread has ended")
        for future in list(self._pending):
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_exception(failure)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; only `call_soon_threadsafe` may be used from other threads."""
        assert self._loop is not None
        return self._loop

    @property
    def is_own_thread(self) -> bool:
        """True when called on the engine thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """True while the loop runs."""
        is_over = self._failure is not None or self.loop.is_closed()
        return self._thread.is_alive() and not is_over

    def submit(
        self, work: Callable[[], Coroutine[Any, Any, _Result]]
    ) -> concurrent.futures.Future[_Result]:
        """Run `work()` on the engine loop.

        Raises:
            InternalError: called on the engine thread, or the engine is gone.
        """
        if self.is_own_thread:
            raise InternalError("the engine thread may not wait for itself")
        if not self.is_alive:
            raise self._failure or InternalError("the engine thread has ended")
        empty = contextvars.Context()
        future = empty.run(asyncio.run_coroutine_threadsafe, work(), self.loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._failure is not None or self.loop.is_closed():
            self._release_waiters()
        return future

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback`; silently nothing once the loop is closed."""
        if self._failure is not None:
            return  # To wake it is to write to a descriptor.
        try:
            self.loop.call_soon_threadsafe(callback, context=self._context)
        except RuntimeError:
            # The loop closed between the check and the call: there is nobody left to wake.
            if self.is_alive:
                raise


_engine: LoopThread | None = None
_engine_lock = threading.Lock()
_fork_callbacks: list[Callable[[], None]] = []
_loss_callbacks: list[Callable[[InternalError], None]] = []
_death_callbacks: list[Callable[[InternalError], None]] = []


def engine() -> LoopThread:
    """This process's engine; starts it on first use."""
    global _engine
    with _engine_lock:
        if _engine is None or not _engine.is_alive:
            _engine = LoopThread()
        return _engine


def submit_nowhere(
    work: Callable[[], Coroutine[Any, Any, _Result]],
) -> concurrent.futures.Future[_Result]:
    """Run `work()` here and now, without an engine: for work that waits for nothing."""
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
    coroutine = work()
    try:
        coroutine.send(None)
    except StopIteration as finished:
        future.set_result(finished.value)
    except Exception as error:
        future.set_exception(error)
    else:
        coroutine.close()
        raise InternalError("work that was to wait for nothing waits")
    return future


def give_way() -> None:
    """Let a thread that waits for the interpreter have it: between two stretches of long work.

    Letting go for no time is not enough: whoever waits takes longer to wake up than we to come
    back. Without this a caller waits for `sys.getswitchinterval()`, 5 ms by default.
    """
    time.sleep(_WAKE_UP_S)


def running_engine() -> LoopThread | None:
    """This process's engine if it runs. Takes no lock: fit for signal handlers."""
    thread = _engine
    return thread if thread is not None and thread.is_alive else None


def on_fork(callback: Callable[[], None]) -> None:
    """Have `callback` called in every forked child, before it runs anything else."""
    _fork_callbacks.append(callback)


def on_loss(callback: Callable[[InternalError], None]) -> None:
    """Have `callback` called, on any thread, when it shows that the engine cannot be reached."""
    _loss_callbacks.append(callback)


def on_death(callback: Callable[[InternalError], None]) -> None:
    """Have `callback` called, on the engine thread, when the engine can go on no more."""
    _death_callbacks.append(callback)


def _after_fork_in_child() -> None:
    global _engine, _engine_lock
    # Abandoned, not closed: the parent still uses the sockets behind the inherited descriptors.
    _engine, _engine_lock = None, threading.Lock()
    for callback in _fork_callbacks:
        callback()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
