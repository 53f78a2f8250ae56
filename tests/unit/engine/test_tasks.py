"""Facts about the engine thread, its tasks and its signals."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from metrana_async.engine import lifecycle
from metrana_async.engine.loop_thread import LoopThread, engine
from metrana_async.engine.pulse import Pulse
from metrana_async.engine.supervisor import Supervisor
from metrana_async.errors import ConnectError, InternalError


@pytest.mark.asyncio
async def test_a_dead_task_reports_its_cause_once():
    """The first death is the cause; an unknown fault is wrapped and kept as __cause__."""
    causes = []
    supervisor = Supervisor(causes.append)

    async def die() -> None:
        raise KeyError("broken")

    await supervisor.spawn("first", die())
    await supervisor.spawn("second", die())
    assert len(causes) == 1
    assert isinstance(causes[0], InternalError)
    assert isinstance(causes[0].__cause__, KeyError)
    assert "first" in str(causes[0])


@pytest.mark.asyncio
async def test_an_error_of_ours_is_the_cause_itself():
    """A MetranaError is reported as it is."""
    causes = []
    supervisor = Supervisor(causes.append)

    async def die() -> None:
        raise ConnectError("away")

    await supervisor.spawn("task", die())
    assert isinstance(causes[0], ConnectError)


@pytest.mark.asyncio
async def test_stopping_is_no_death():
    """Cancelled tasks end without being reported, and stop() may be repeated."""
    causes = []
    supervisor = Supervisor(causes.append)
    task = supervisor.spawn("task", asyncio.Event().wait())
    await supervisor.stop()
    await supervisor.stop()
    assert task.done()
    assert not causes


@pytest.mark.asyncio
async def test_a_beat_wakes_every_waiter():
    """Everyone who waits at the time of a beat goes on; a time-out leaves the others waiting."""
    pulse = Pulse()
    waiters = [asyncio.ensure_future(pulse.wait(30)) for _ in range(3)]
    await pulse.wait(0)
    assert not any(w.done() for w in waiters)
    pulse.beat()
    await asyncio.gather(*waiters)


def test_the_engine_is_one_daemon_thread_per_process():
    """The engine starts once and its work runs on its own thread."""

    async def where() -> str:
        return threading.current_thread().name

    assert engine() is engine()
    assert engine().submit(where).result(10) == "metrana-engine"


def test_the_bridge_refuses_the_engine_thread():
    """Waiting for the engine on the engine would never end, so it is refused."""
    thread = engine()

    async def nested() -> None:
        thread.submit(nested)

    with pytest.raises(InternalError, match="itself"):
        thread.submit(nested).result(10)


def test_an_ended_engine_refuses_work():
    """A stopped loop takes no more work instead of hanging."""
    thread = LoopThread()
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    thread._thread.join(10)

    async def nothing() -> None: ...

    with pytest.raises(InternalError, match="ended"):
        thread.submit(nothing)
    thread.call_soon(lambda: None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_a_fresh_engine():
    """The child's engine is another one and works; the parent's goes on."""
    before = engine()

    async def pid() -> int:
        return os.getpid()

    child = os.fork()
    if child == 0:
        try:
            is_fresh = engine() is not before
            is_ours = engine().submit(pid).result(10) == os.getpid()
            os._exit(0 if is_fresh and is_ours else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert before.submit(pid).result(10) == os.getpid()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ("finished", None)),
        (ValueError("x"), ("failed", "ValueError")),
        (KeyboardInterrupt(), ("stopped", None)),
        (SystemExit(3), ("stopped", None)),
        (asyncio.CancelledError(), ("stopped", None)),
        (ZeroDivisionError, ("failed", "ZeroDivisionError")),
    ],
)
def test_end_states(error, expected):
    """An exception fails a run, an interrupt stops it, nothing finishes it."""
    assert lifecycle.status_of(error) == expected
