"""Leaving: normal exit, unhandled exceptions and SIGTERM. Never replaces a user's handler.

`threading._register_atexit` runs when the main thread is through, before the interpreter tears
anything down. Non-daemon threads may go on logging then, so the farewell is said by a thread that
waits for the last of them (`atexit` would come after them too, but not in a `multiprocessing`
child). `atexit` is the fallback where that hook does not exist or was interrupted. The farewell is
said once, with the exit budget as deadline.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from metrana_async.notices import say

Farewell = Callable[[float, str, "str | None"], "concurrent.futures.Future[None] | None"]
"""Starts leaving, given (budget in seconds, status, exception type name); None = nothing to do.

It takes no lock: a signal handler may have interrupted whoever holds it.
"""

EXIT_BUDGET_S: Final = 10.0
SIGTERM_BUDGET_S: Final = 2.0
_GRACE_S: Final = 0.5
_HANDLER_SLICE_S: Final = 0.25
_HANDLER_PAUSE_S: Final = 0.01
_WAITING_NAME: Final = "metrana-farewell"

_INTERRUPTS: Final = ("KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit")

_farewell: Farewell | None = None
_is_done = False
_terminating: tuple[concurrent.futures.Future[None] | None, float] | None = None


def status_of(exception: BaseException | type[BaseException] | None) -> tuple[str, str | None]:
    """The end state that an exception gives a run, and the exception's name where it failed."""
    if exception is None:
        return "finished", None
    kind = exception if isinstance(exception, type) else type(exception)
    if kind.__name__ in _INTERRUPTS or any(b.__name__ in _INTERRUPTS for b in kind.__mro__):
        return "stopped", None
    return "failed", kind.__name__


def install(farewell: Farewell) -> None:
    """Have `farewell` called when the program ends. Call again after a fork; idempotent."""
    global _farewell, _is_done, _terminating
    _is_done = False
    _terminating = None
    if _farewell is not None:
        return
    _farewell = farewell
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        try:
            register(_main_is_over)
        except RuntimeError:
            # The interpreter is already on its way out; atexit below still runs.
            register = None
    atexit.register(_say_farewell)
    _install_sigterm()


def _main_is_over() -> None:
    if not _others():
        _say_farewell()
        return
    # atexit says it where no thread can be started any more.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_wait_for_others, name=_WAITING_NAME, daemon=False).start()


def _wait_for_others() -> None:
    while others := _others():
        others[0].join()
    _say_farewell()


def _others() -> list[threading.Thread]:
    """The threads that the interpreter waits for before it ends."""
    own = (threading.main_thread(), threading.current_thread())
    return [t for t in threading.enumerate() if not t.daemon and t not in own]


def _say_farewell() -> None:
    global _is_done
    if _is_done or _farewell is None:
        return
    _is_done = True
    # Set by the interpreter, and by nobody else, when an exception ended the program.
    unhandled = getattr(sys, "last_type", None)
    leaving = _farewell(EXIT_BUDGET_S, *status_of(unhandled))
    if leaving is None:
        return
    done, _ = concurrent.futures.wait([leaving], EXIT_BUDGET_S + _GRACE_S)
    if not done or leaving.exception() is not None:
        say(f"not everything was stored within {EXIT_BUDGET_S:g} s")


def _install_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Store what there is, then die of the signal as by default.

    The handler waits in slices and comes back by itself in between: the code it interrupted may
    hold a lock that the engine needs.
    """
    global _terminating, _is_done
    del frame
    if _terminating is None and _farewell is not None:
        _is_done = True
        deadline_s = time.monotonic() + SIGTERM_BUDGET_S
        _terminating = (_farewell(SIGTERM_BUDGET_S, "stopped", None), deadline_s)
    leaving, deadline_s = _terminating or (None, 0.0)
    if leaving is not None:
        left_s = deadline_s + _GRACE_S - time.monotonic()
        done, _ = concurrent.futures.wait([leaving], max(0.0, min(_HANDLER_SLICE_S, left_s)))
        if not done and left_s > 0:
            again = threading.Timer(_HANDLER_PAUSE_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
    # The default action, so that the exit status is what whoever sent the signal expects.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
