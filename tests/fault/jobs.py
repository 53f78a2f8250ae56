"""Client processes that are cheap to start, report through shared memory, and can be harmed.

They are forked from a server process that has everything imported, so one takes some hundredths
of a second. Each tells its progress in shared memory, which no fault at system calls can harm and
which outlives the process. `Fault` is what strace does to the one thread that makes the spool's
file calls.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import metrana_sync_shim as metrana
from metrana_async.engine.loop_thread import engine
from metrana_async.spool import writer as spool_writer
from tests.fault.points import POINTS, log_item

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.fault.jobs"])
_PATIENCE_S = 30.0
_LOOK_S = 0.005

_FIELDS = (
    "thread",
    "logged",
    "kept",
    "accepted",
    "committed",
    "spooled",
    "lost",
    "is_balanced",
    "noted",
)

needs_strace = pytest.mark.skipif(
    subprocess.run(["which", "strace"], capture_output=True, check=False).returncode != 0,
    reason="strace is not installed: no faults at system calls",
)


class Progress:
    """Numbers in shared memory: how far a job is, and what it was promised.

    `logged` counts items that were begun; `noted` is the test's own.
    """

    def __init__(self) -> None:
        self._numbers = _CONTEXT.RawArray("q", len(_FIELDS))

    def __getattr__(self, name: str) -> int:
        if name not in _FIELDS:
            raise AttributeError(name)
        return int(self._numbers[_FIELDS.index(name)])

    def put(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self._numbers[_FIELDS.index(name)] = number

    def put_statistics(self, statistics: metrana.Statistics) -> None:
        self.put(
            accepted=statistics.accepted,
            committed=statistics.committed,
            spooled=statistics.spooled,
            lost=sum(statistics.losses.values()),
            is_balanced=statistics.is_balanced,
        )


@dataclass(frozen=True)
class Plan:
    """What a job does: log items, flush now and then, close.

    Attributes:
        arguments: of `init`.
        items: how many it logs.
        flush_every: a flush after so many items; 0 = none.
        flush_timeout_s: what each may take.
        segment_bytes: size of the spool's segments.
        is_closing: whether it closes; otherwise it waits for its end.
        pace_s: what it waits between items.
        meddle: called in the job, with the run and the progress, when half of it is logged.
        is_healed_before_close: whether it waits for `Job.heal` before it closes.
        replays: instead of all this, deliver this spool directory.
        close_timeout_s: what `close` may take.
    """

    arguments: dict[str, Any]
    items: int = 30
    flush_every: int = 10
    flush_timeout_s: float = 3.0
    segment_bytes: int = 1024
    is_closing: bool = True
    pace_s: float = 0.0
    meddle: Callable[[Any, Progress], None] | None = None
    is_healed_before_close: bool = False
    replays: str = ""
    close_timeout_s: float = 3.0


def work(plan: Plan, progress: Progress, go: Any) -> None:
    """The job, in its process."""
    spool_writer.SEGMENT_BYTES = plan.segment_bytes
    thread = engine().io._thread
    progress.put(thread=thread.native_id or 0)
    go.acquire()
    if plan.replays:
        with contextlib.suppress(OSError):
            metrana.replay_spool(plan.replays, **plan.arguments)
        return
    run = metrana.init(quiet=True, **plan.arguments)
    for k in range(plan.items):
        if plan.meddle is not None and 2 * k == plan.items:
            plan.meddle(run, progress)
        progress.put(logged=k + 1)
        log_item(run, k)
        if plan.pace_s:
            threading.Event().wait(plan.pace_s)
        if plan.flush_every and (k + 1) % plan.flush_every == 0:
            with contextlib.suppress(metrana.WaitTimeoutError):
                statistics = run.flush(plan.flush_timeout_s)
                if statistics.committed + statistics.spooled == POINTS * (k + 1):
                    progress.put(kept=k + 1)
    if not plan.is_closing:
        threading.Event().wait()
    if plan.is_healed_before_close:
        go.acquire()
        until(lambda: run.get_metrics().committed == POINTS * plan.items, "all of it has arrived")
    progress.put_statistics(run.close(plan.close_timeout_s).statistics)


@dataclass
class Job:
    """A running job."""

    process: Any
    progress: Progress
    go: Any
    tracer: subprocess.Popen[bytes] | None = None
    trace: Path | None = None

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def start(self) -> None:
        """Let it begin."""
        self.go.release()

    def heal(self) -> None:
        """What was wrong is over: it may close."""
        self.go.release()

    def is_alive(self) -> bool:
        return bool(self.process.is_alive())

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout_s: float = _PATIENCE_S) -> int:
        """Wait for its end; returns the exit code, -9 where it was killed."""
        self.process.join(timeout_s)
        assert self.process.exitcode is not None, "the job does not end"
        if self.tracer is not None:
            self.tracer.wait(_PATIENCE_S)
        return int(self.process.exitcode)

    def has_fired(self) -> bool:
        """Whether strace has done what it was asked to."""
        assert self.trace is not None
        text = self.trace.read_text("utf-8", "replace")
        return any(word in text for word in ("INJECTED", "DELAYED", "killed by SIGKILL"))

    def clear(self) -> None:
        self.kill()
        self.process.join(_PATIENCE_S)
        if self.tracer is not None:
            self.tracer.kill()
            self.tracer.wait(_PATIENCE_S)


@contextmanager
def job(plan: Plan) -> Iterator[Job]:
    """A job that waits for `start`; it is gone afterwards."""
    progress, go = Progress(), _CONTEXT.Semaphore(0)
    process = _CONTEXT.Process(target=work, args=(plan, progress, go))
    process.start()
    made = Job(process, progress, go)
    try:
        until(lambda: made.progress.thread != 0, "the job is up")
        yield made
    finally:
        made.clear()


@contextmanager
def harmed_job(plan: Plan, fault: str, trace: Path) -> Iterator[Job]:
    """A job whose file calls meet `fault`, what strace's ``inject=`` is given.

    Only the thread that makes the file calls is traced, so nothing else is harmed; the count of
    ``when=`` is of its calls.
    """
    with job(plan) as made:
        calls = fault.split(":", 1)[0]
        words = ["strace", "-p", str(made.progress.thread), "-o", str(trace), f"-etrace={calls}"]
        said = trace.with_suffix(".said")
        with said.open("w") as errors:
            made.tracer = subprocess.Popen([*words, f"-einject={fault}"], stderr=errors)
        made.trace = trace
        until(lambda: "attached" in said.read_text(), "strace is there")
        made.start()
        yield made


def until(fact: Callable[[], bool], what: str) -> None:
    """Look again and again until `fact` holds."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline_s, f"not within {_PATIENCE_S:g} s: {what}"
        time.sleep(_LOOK_S)  # between looks at another process, which can tell us nothing
