"""Facts about calls that interrupt another call of their own thread."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest

import metrana_sync_shim as metrana
from metrana_async import current
from metrana_async.engine.loop_thread import engine
from metrana_async.errors import WaitTimeoutError
from metrana_async.testing import MemoryServer


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith("METRANA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "")
    monkeypatch.setattr(current, "_current", None)


@pytest.fixture
def server():
    with MemoryServer() as server:
        yield server


def open_run(server: MemoryServer, **arguments):
    arguments = {"project_name": "p", "run_name": "r", "quiet": True, **arguments}
    return metrana.init(transport=server.transport(), **arguments)


def values(server: MemoryServer, metric: str) -> list[float]:
    with metrana.QueryClient(project="p", transport=server.transport()) as reader:
        return reader.series("r", metric).value.tolist()


@pytest.mark.fault_row("A18")
@pytest.mark.parametrize("held", ["inbox", "registry"])
def test_a_call_inside_a_held_lock_is_made_afterwards(server, held):
    """Whatever an interrupting call logs is taken, copied at the call, and stored."""
    run = open_run(server)
    run.log("seen", 1.0)
    inner = run._run.front._writer
    block = np.array([1.0, 2.0])
    with getattr(inner, held)._lock:
        run.log("new", block)
        run.log_config({"a": 1})
        run.log("seen", 2.0)
        run.log({"seen": 3.0})
        block[:] = 9.0
        with pytest.raises(WaitTimeoutError, match="signal handler"):
            run.flush()
        with pytest.raises(WaitTimeoutError, match="signal handler"):
            run.close()
    assert run.flush(20).committed == 5
    assert run.close(20).is_complete
    assert values(server, "new") == [1.0, 2.0]
    assert values(server, "seen") == [1.0, 2.0, 3.0]


def test_a_usage_error_of_such_a_call_is_told_and_counted(server):
    """Nobody is there to catch it: it becomes a warning."""
    run = open_run(server)
    with pytest.warns(metrana.MetranaWarning, match="text"):  # noqa: PT031 - whichever thread it is
        with run._run.front._writer.inbox._lock:
            run.log("x", "text")
        run.flush(20)
    assert run.close(20).statistics.usage_errors == 1


@pytest.mark.fault_row("A18")
def test_signal_handlers_log_and_flush(server):
    """A handler that logs arrays and new metrics all the time loses nothing."""
    run = open_run(server)
    fired, is_over = 0, False

    def handler(number, frame):
        nonlocal fired
        run.log("handler", [1.0, 2.0])
        run.log(f"new{fired}", 1.0)
        fired += 1
        # A handler that runs behind the last disarming must not arm again: the default action
        # of the restored signal would end the process.
        if not is_over:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002)
    try:
        for i in range(10_000):
            run.log("main", [1.0, 2.0, 3.0])
            run.log(f"main{i % 500}", [0.0])
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert fired > 50
    assert run.flush(30).committed == 3 * fired + 40_000
    assert run.close(20).is_complete
    assert values(server, "handler") == [1.0, 2.0] * fired
    assert values(server, "main") == [1.0, 2.0, 3.0] * 10_000


class _Node:
    """Garbage with a finalizer: only the collector finds it."""

    def __init__(self, run, counts):
        self.itself, self.run, self.counts = self, run, counts

    def __del__(self):
        self.run.log("deleted", [1.0])
        self.counts.append(1)


@pytest.mark.fault_row("A18")
def test_finalizers_and_collector_callbacks_log(server):
    """`__del__`, weakref and GC callbacks log, whichever thread the collector runs on."""
    run = open_run(server)
    deleted: list[int] = []
    collected: list[int] = []
    finalized: list[int] = []

    def on_gc(phase, info):
        if phase == "stop":
            run.log("collected", [1.0])
            collected.append(1)

    def on_finalize():
        run.log("finalized", [1.0])
        finalized.append(1)

    threshold = gc.get_threshold()
    gc.callbacks.append(on_gc)
    gc.set_threshold(10)
    try:
        for i in range(300):
            node = _Node(run, deleted)
            weakref.finalize(node, on_finalize)
            del node
            run.log("main", [float(i)])
        run.flush(30)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(on_gc)
    gc.collect()
    run.flush(30)
    assert len(deleted) == len(finalized) == 300
    assert collected
    run.close(20)
    assert values(server, "main") == [float(i) for i in range(300)]
    for name, told in (("deleted", deleted), ("collected", collected), ("finalized", finalized)):
        assert len(values(server, name)) == len(told), name


def test_the_engines_own_thread_may_log_and_never_waits(server):
    """A finalizer on the engine thread that finds the inbox full is taken at once."""
    run = open_run(server, queue_capacity=10)
    done = threading.Event()

    def on_engine():
        for _ in range(5):
            run.log("engine", np.ones(20))
        done.set()

    engine().call_soon(on_engine)
    assert done.wait(5)
    assert run.flush(20).committed == 100
    run.close(20)


def test_a_lock_of_the_callers_is_no_hindrance(server):
    """A caller that logs inside its own lock while another thread flushes and logs under it."""
    run = open_run(server)
    lock = threading.Lock()

    def other():
        for i in range(50):
            with lock:
                run.log("b", [float(i)])
                run.flush(20)

    thread = threading.Thread(target=other)
    thread.start()
    for i in range(50):
        with lock:
            run.log("a", [float(i)])
    thread.join(30)
    assert not thread.is_alive()
    assert run.flush(20).committed == 100
    run.close(20)
