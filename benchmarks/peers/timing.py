"""Timed loops over calls: what the loop loses a call, and how long each call takes."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Call = Callable[[int], None]
_GULP = 1_024


@dataclass(frozen=True)
class Bare:
    """A loop without a clock in it."""

    calls: int
    wall_s: float
    cpu_s: float
    """Of the calling thread."""


def bare(call: Call, first: int, calls: int, limit_s: float) -> Bare:
    """Call with `first`, `first` + 1, … `calls` times, or until the time is over."""
    done, gulp = 0, 1
    start_cpu_s, start_s = time.thread_time(), time.perf_counter()
    while done < calls and time.perf_counter() - start_s < limit_s:
        last = min(done + gulp, calls)
        for number in range(first + done, first + last):
            call(number)
        done, gulp = last, min(2 * gulp, _GULP)
    return Bare(done, time.perf_counter() - start_s, time.thread_time() - start_cpu_s)


def clocked(call: Call, first: int, calls: int, limit_s: float, rate_hz: float = 0.0) -> np.ndarray:
    """Nanoseconds of each call, the clock's own 0.1 us included; paced where a rate is given."""
    took_ns = array("q")
    clock = time.perf_counter_ns
    end_s = time.perf_counter() + limit_s
    due_s = time.perf_counter()
    for number in range(first, first + calls):
        start_ns = clock()
        call(number)
        took_ns.append(clock() - start_ns)
        if rate_hz:
            due_s += 1 / rate_hz
            time.sleep(max(0.0, due_s - time.perf_counter()))
        elif time.perf_counter() > end_s:
            break
    return np.frombuffer(took_ns, np.int64)


def together(works: Sequence[Callable[[], object]]) -> None:
    """Run each in a thread of its own, all from the same moment on."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
