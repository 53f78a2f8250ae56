"""Leaving: normal exit, unhandled exceptions, SIGTERM and SIGHUP. Replaces no user's handler.

`threading._register_atexit` runs when the main thread is through, before the interpreter tears
anything down: everything is flushed then, with the intake still open. Non-daemon threads may go on
logging, so this is done by a thread that waits for the last of them. `atexit` runs after that and
says the farewell: what the program's own exit functions logged meanwhile goes with it. A
`multiprocessing` child may never come there, so it says farewell at the first hook.

A signal whose disposition is the default is handled: everything goes to the disk at once, then to
the server for a short while, then the default action follows. The engine does the first part by
itself (`wakeup`) where the main thread does not come to run a handler.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

from metrana_async.engine import wakeup
from metrana_async.engine.loop_thread import LoopThread
from metrana_async.notices import say

_Work = concurrent.futures.Future[None] | None


@dataclass(frozen=True, slots=True)
class Runs:
    """What the end of a process asks of its open runs, given a budget in seconds.

    Each starts work on the engine and gives its future; None = there is nothing to do. None of
    them takes a lock: a signal handler may have interrupted whoever holds it.

    Attributes:
        flush: have everything stored, with the intake open.
        farewell: flush with the intake open for some of the budget, then leave; given (budget,
            seconds of it for the flush, status, exception type name).
        spill: have everything on the disk, whatever the server does.
        hurry: have work of the other kinds go on without the server: keep, and leave.
    """

    flush: Callable[[float], _Work]
    farewell: Callable[[float, float, str, str | None], _Work]
    spill: Callable[[float], _Work]
    hurry: Callable[[], _Work]


EXIT_BUDGET_S: Final = 10.0
SIGTERM_BUDGET_S: Final = 2.0
SIGNALS: Final = tuple(
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
"""The signals that end a program by default and announce themselves."""

_FLUSH_SHARE: Final = 0.9
_FAREWELL_S_MIN: Final = 1.0
_HURRY_S: Final = 1.5
_GRACE_S: Final = 0.5
_HANDLER_SLICE_S: Final = 0.25
_HANDLER_PAUSE_S: Final = 0.01
_WAITING_NAME: Final = "metrana-farewell"

_INTERRUPTS: Final = ("KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit")

_runs: Runs | None = None
_child_exception: type[BaseException] | None = None
_is_done = False
_exit_deadline_s: float | None = None
_terminating: tuple[_Work, float] | None = None


def status_of(exception: BaseException | type[BaseException] | None) -> tuple[str, str | None]:
    """The end state that an exception gives a run, and the exception's name where it failed."""
    if exception is None:
        return "finished", None
    kind = exception if isinstance(exception, type) else type(exception)
    if kind.__name__ in _INTERRUPTS or any(b.__name__ in _INTERRUPTS for b in kind.__mro__):
        return "stopped", None
    return "failed", kind.__name__


def install(runs: Runs, thread: LoopThread) -> None:
    """Have `runs` asked when the program ends. Call with every opening, again after a fork."""
    global _runs, _is_done, _terminating, _exit_deadline_s
    _is_done = False
    _terminating = _exit_deadline_s = None
    if _runs is None:
        _runs = runs
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            # Refused where the interpreter is on its way out; atexit still comes.
            with contextlib.suppress(RuntimeError):
                register(_main_is_over)
    _watch_child()
    _claim_signals(thread)


# --- the end of the main thread ------------------------------------------------------------------
def _main_is_over() -> None:
    if not _others():
        _flush_all()
        return
    # atexit does it where no thread can be started any more.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_wait_for_others, name=_WAITING_NAME, daemon=False).start()


def _wait_for_others() -> None:
    while others := _others():
        others[0].join()
    _flush_all()


def _others() -> list[threading.Thread]:
    """The threads that the interpreter waits for before it ends."""
    own = (threading.main_thread(), threading.current_thread())
    return [t for t in threading.enumerate() if not t.daemon and t not in own]


def _flush_all() -> None:
    """Have everything stored while names are resolved and threads are started as ever."""
    global _exit_deadline_s
    if _runs is None or _is_done or _terminating is not None:
        return
    _exit_deadline_s = time.monotonic() + EXIT_BUDGET_S
    flush_s = EXIT_BUDGET_S * _FLUSH_SHARE
    _ends(_runs.flush(flush_s), flush_s + _GRACE_S)
    if _is_multiprocessing_child():
        _say_farewell()


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _watch_child() -> None:
    """Learn which exception ends a `multiprocessing` child: it leaves no trace in `sys` there."""
    if _is_multiprocessing_child():
        util = importlib.import_module("multiprocessing.util")
        # Called while the exception is on its way out.
        util.Finalize(None, _note_child_exception, exitpriority=0)


def _note_child_exception() -> None:
    global _child_exception
    kind = sys.exc_info()[0]
    if kind is not None and not issubclass(kind, SystemExit):
        _child_exception = kind


def _say_farewell() -> None:
    global _is_done
    if _terminating is not None:
        # A signal came as the program ended: what its handler began is waited for here.
        work, deadline_s = _terminating
        _ends(work, max(0.0, deadline_s + _GRACE_S - time.monotonic()))
        return
    if _is_done or _runs is None:
        return
    _is_done = True
    if _exit_deadline_s is None:
        # The first hook was not there, or was cut short.
        budget_s, flush_s = EXIT_BUDGET_S, EXIT_BUDGET_S * _FLUSH_SHARE
    else:
        budget_s, flush_s = max(_FAREWELL_S_MIN, _exit_deadline_s - time.monotonic()), 0.0
    # Set by the interpreter, and by nobody else, when an exception ended the program.
    unhandled = getattr(sys, "last_type", None) or _child_exception
    leaving = _runs.farewell(budget_s, flush_s, *status_of(unhandled))
    if not _ends(leaving, budget_s + _GRACE_S):
        say(f"not everything was stored within {EXIT_BUDGET_S:g} s")


def _ends(work: _Work, limit_s: float) -> bool:
    """Wait for engine work; False when it failed or did not end in time.

    Ctrl-C means "now": what the server does not have yet stays on the disk. Again: not even that.
    """
    global _exit_deadline_s
    if work is None:
        return True
    try:
        concurrent.futures.wait([work], limit_s)
    except KeyboardInterrupt:
        _exit_deadline_s = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            if _runs is not None:
                _runs.hurry()
            concurrent.futures.wait([work], _HURRY_S)
    return work.done() and work.exception() is None


# Before anybody who imports us can register exit functions of his own: they run in reverse order,
# and may still log.
atexit.register(_say_farewell)


# --- signals -------------------------------------------------------------------------------------
def _claim_signals(thread: LoopThread) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _on_signal)
    wakeup.claim(thread, _on_wakeup)


def give_back_signals() -> None:
    """No run is open any more: leave the process's signals as they were found."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL)
    wakeup.give_back()


# The masks of threads that are forking, by thread.
_held_masks: dict[int, set[signal.Signals | int]] = {}


def _hold_signals() -> None:
    """Before a fork: a signal for the child waits until it can be handled there.

    CPython forgets in the child what came before its hooks have run. By default such a signal
    would end the child; a handler of ours must not save it.
    """
    if any(signal.getsignal(number) is _on_signal for number in SIGNALS):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        _held_masks[threading.get_ident()] = mask


def _release_signals() -> None:
    """After a fork, on both sides."""
    mask = _held_masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


if hasattr(os, "register_at_fork"):
    # In the child behind the hooks of the engine: the handler finds no engine then.
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_release_signals, after_in_child=_release_signals
    )


def _on_wakeup(number: int) -> None:
    """A signal that may end the program has come, whoever handles it. Engine loop."""
    if number in SIGNALS and _runs is not None:
        _runs.spill(SIGTERM_BUDGET_S)


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Keep and store what there is, then die of the signal as by default.

    The handler waits in slices and comes back by itself in between: the code it interrupted may
    hold a lock that the engine needs.
    """
    global _terminating
    del frame
    if _terminating is None and _runs is not None:
        deadline_s = time.monotonic() + SIGTERM_BUDGET_S
        _runs.spill(SIGTERM_BUDGET_S)
        # With the intake open: the code that was interrupted goes on between the slices.
        flush_s = SIGTERM_BUDGET_S * _FLUSH_SHARE
        _terminating = (_runs.farewell(SIGTERM_BUDGET_S, flush_s, "stopped", None), deadline_s)
    work, deadline_s = _terminating or (None, 0.0)
    if work is not None:
        left_s = deadline_s + _GRACE_S - time.monotonic()
        done, _ = concurrent.futures.wait([work], max(0.0, min(_HANDLER_SLICE_S, left_s)))
        if not done and left_s > 0:
            again = threading.Timer(_HANDLER_PAUSE_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
    # The default action, so that the exit status is what whoever sent the signal expects.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
