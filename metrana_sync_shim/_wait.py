"""The one place of the shim that waits. Works in any thread, also inside a running event loop."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Final, TypeVar

from metrana_async.front import joining
from metrana_async.statistics import CloseInfo
from metrana_async.waiting import Pending, hangs

_Result = TypeVar("_Result")

# Engine work keeps its own deadline; this much more is only for an engine that hangs.
_GRACE_S: Final = 5.0
# Waiting in slices keeps Ctrl-C prompt on every platform.
_SLICE_S: Final = 0.25


def wait(pending: Pending) -> None:
    """Wait for what a logging call returned: nothing, or room in the inbox."""
    pending.block()


def wait_for(future: concurrent.futures.Future[_Result], timeout_secs: float) -> _Result:
    """Wait for engine work and return its result or raise its error.

    Raises:
        WaitTimeoutError: the engine did not keep the deadline itself.
    """
    limit_s = timeout_secs + _GRACE_S
    deadline_s = time.monotonic() + limit_s
    while True:
        left_s = deadline_s - time.monotonic()
        done, _ = concurrent.futures.wait([future], timeout=max(0.0, min(left_s, _SLICE_S)))
        if done:
            return future.result()
        if left_s <= 0:
            raise hangs(limit_s)


def wait_for_close(future: concurrent.futures.Future[CloseInfo], timeout_secs: float) -> CloseInfo:
    """Like `wait_for`, for a run that is being closed."""
    try:
        return wait_for(future, timeout_secs)
    finally:
        joining().after_close()
