"""Tells the engine loop of a signal while the main thread cannot: the process's wakeup descriptor.

Python runs signal handlers in the main thread, between two bytecodes. A main thread in one long
call of C code (a solver, a collective, a compile) runs none until that returns; the C part of
Python's signal handling, though, writes the number of every signal that has a Python handler to
one descriptor at once. There is one such descriptor per process, so it is taken only while it is
free, and never from an event loop of the program: one that comes later simply takes it over.

The pipe is never closed. An event loop that took the descriptor over may put ours back when it
ends, and by then its number must not be another file's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from metrana_async.engine.loop_thread import LoopThread, on_fork

_NUMBERS_BYTES = 4096

_ends: tuple[int, int] | None = None
_listening: LoopThread | None = None
_on_signal: Callable[[int], None] | None = None


def claim(thread: LoopThread, on_signal: Callable[[int], None]) -> None:
    """Have `on_signal(number)` called on the engine loop for every signal with a Python handler.

    Main thread only. Does nothing where the descriptor is somebody else's.
    """
    global _ends, _listening, _on_signal
    if "trio" in sys.modules or sys.platform == "win32":
        return  # Trio warns of whoever had the descriptor before it; Windows wants a socket.
    if _ends is None:
        _ends = os.pipe()
        for end in _ends:
            os.set_blocking(end, False)
    reading, writing = _ends
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
    if _ends is None:
        return
    before = signal.set_wakeup_fd(-1)
    if before not in (-1, _ends[1]):
        signal.set_wakeup_fd(before)


def _read(reading: int) -> None:
    with contextlib.suppress(BlockingIOError):
        for number in set(os.read(reading, _NUMBERS_BYTES)):
            if _on_signal is not None:
                _on_signal(number)


def _after_fork() -> None:
    """The parent's descriptor is not for the child's signals."""
    global _ends, _listening
    with contextlib.suppress(ValueError):
        give_back()
    _ends = _listening = None


on_fork(_after_fork)
