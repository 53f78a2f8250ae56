"""Tells the engine loop of a signal while the main thread cannot: the process's wakeup descriptor.

Python runs signal handlers in the main thread, between two bytecodes. A main thread in one long
call of C code (a solver, a collective, a compile) runs none until that returns; the C part of
Python's signal handling, though, writes the number of every signal that has a Python handler to
one descriptor at once. There is one such descriptor per process, so it is taken only while it is
free, and never from an event loop of the program: one that comes later simply takes it over.

The pipe is never closed. An event loop that took the descriptor over may put ours back when it
ends, and by then its number must not be another file's.

A program may close every descriptor it finds, the pipe's too, and open files under their numbers;
Python's C code would write the numbers of signals into those. So the descriptor is given back as
soon as it shows that ours are gone, which takes the main thread: see `_on_loss`. Signals with a
Python handler that come in between, each a byte, cannot be kept out of such a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from metrana_async.engine.loop_thread import LoopThread, on_fork, on_loss
from metrana_async.errors import InternalError

_NUMBERS_BYTES = 4096


class _Pipe(NamedTuple):
    """Our pipe's descriptors, and which file it is: their numbers may come to be another's."""

    reading: int
    writing: int
    file: tuple[int, int]

    @classmethod
    def make(cls) -> _Pipe:
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        return cls(reading, writing, _file_at(writing))

    def is_there(self) -> bool:
        """Whether the number is still ours."""
        try:
            return _file_at(self.writing) == self.file
        except OSError:
            return False


def _file_at(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino


_pipe: _Pipe | None = None
_listening: LoopThread | None = None
_on_signal: Callable[[int], None] | None = None
_pending: object = None


def claim(thread: LoopThread, on_signal: Callable[[int], None]) -> None:
    """Have `on_signal(number)` called on the engine loop for every signal with a Python handler.

    Main thread only. Does nothing where the descriptor is somebody else's.
    """
    global _pipe, _listening, _on_signal
    if "trio" in sys.modules or sys.platform == "win32":
        return  # Trio warns of whoever had the descriptor before it; Windows wants a socket.
    if _pipe is not None and not _pipe.is_there():
        _lose()
    if _pipe is None:
        _pipe = _Pipe.make()
    reading, writing = _pipe.reading, _pipe.writing
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before not in (-1, writing):
        signal.set_wakeup_fd(before)
        return
    _on_signal = on_signal
    if _listening is not thread:
        _listening = thread
        thread.call_soon(lambda: thread.loop.add_reader(reading, _read, reading))


def give_back() -> None:
    """Stop being told. Main thread only; somebody else's descriptor is left alone."""
    if _pipe is None:
        return
    before = signal.set_wakeup_fd(-1)
    if before not in (-1, _pipe.writing):
        signal.set_wakeup_fd(before)


def _read(reading: int) -> None:
    with contextlib.suppress(BlockingIOError):
        for number in set(os.read(reading, _NUMBERS_BYTES)):
            if _on_signal is not None:
                _on_signal(number)


def _lose() -> None:
    """Stop being told, and leave the pipe's numbers to whoever has them. Main thread only."""
    global _pipe, _listening
    with contextlib.suppress(ValueError):
        give_back()
    _pipe = _listening = None


def _on_loss(failure: InternalError) -> None:
    """The engine's descriptors are gone, so the pipe's may be as well. Any thread."""
    del failure
    if _pipe is None or _pipe.is_there():
        return
    if threading.current_thread() is threading.main_thread():
        _lose()
        return
    # Only the main thread may change the wakeup descriptor, and a signal, which would make it run
    # something, is what must not come. Imported here, for this one moment of a few programs.
    with contextlib.suppress(ImportError):
        import ctypes

        ctypes.pythonapi.Py_AddPendingCall(_pending_call(), None)


def _pending_call() -> object:
    """`_lose` as the interpreter calls it between two bytecodes of the main thread."""
    global _pending
    import ctypes

    if _pending is None:

        def lose(_: object) -> int:
            _lose()
            return 0

        _pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lose)
    return _pending


# The parent's descriptor is not for the child's signals.
on_fork(_lose)
on_loss(_on_loss)
