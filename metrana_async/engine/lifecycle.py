"""Leaving: normal exit, unhandled exceptions and SIGTERM. Never replaces a user's handler.

`threading._register_atexit` runs before the interpreter tears anything down, while the engine
thread still works; `atexit` is the fallback where that hook does not exist. Both call the farewell
once, with the exit budget as deadline.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

Farewell = Callable[[float, str, "str | None"], None]
"""Called with (budget in seconds, status, exception type name)."""

EXIT_BUDGET_S: Final = 10.0
SIGTERM_BUDGET_S: Final = 2.0

_INTERRUPTS: Final = ("KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit")

_farewell: Farewell | None = None
_is_done = False


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
    global _farewell, _is_done
    _is_done = False
    if _farewell is not None:
        return
    _farewell = farewell
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        try:
            register(_say_farewell)
        except RuntimeError:
            # The interpreter is already on its way out; atexit below still runs.
            register = None
    atexit.register(_say_farewell)
    _install_sigterm()


def _say_farewell() -> None:
    global _is_done
    if _is_done or _farewell is None:
        return
    _is_done = True
    # Set by the interpreter, and by nobody else, when an exception ended the program.
    unhandled = getattr(sys, "last_type", None)
    _farewell(EXIT_BUDGET_S, *status_of(unhandled))


def _install_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    del frame
    if _farewell is not None:
        _farewell(SIGTERM_BUDGET_S, "stopped", None)
    # The default action, so that the exit status is what whoever sent the signal expects.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
