"""The bridge to the engine thread."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading

import pytest

from metrana_async.engine import loop_thread, wakeup
from metrana_async.engine.loop_thread import LoopThread, engine
from metrana_async.errors import InternalError

_kind = contextvars.ContextVar("_kind", default="nobody's")


def test_work_does_not_see_its_callers_context():
    """A caller's context variables (which event loop it runs on, say) are not the engine's."""
    _kind.set("the caller's")
    seen = []
    called = threading.Event()

    async def look():
        return _kind.get()

    def note():
        seen.append(_kind.get())
        called.set()

    assert engine().submit(look).result(10) == "nobody's"
    engine().call_soon(note)
    assert called.wait(10)
    assert seen == ["nobody's"]
    assert _kind.get() == "the caller's"


@pytest.fixture
def descriptor(monkeypatch):
    """The wakeup descriptor of this process, free for the test; Trio is not here to want it."""
    monkeypatch.delitem(sys.modules, "trio", raising=False)
    before = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(before)


def test_a_signal_reaches_the_engine_without_the_main_thread(descriptor):
    """Its number arrives on the engine loop while the main thread is inside a blocking call."""
    told, numbers = threading.Event(), []

    def on_signal(number):
        numbers.append((number, threading.current_thread().name))
        told.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        wakeup.claim(engine(), on_signal)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert told.wait(10)
        assert numbers == [(signal.SIGUSR1, "metrana-engine")]
        wakeup.give_back()
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_descriptor_that_is_taken_is_left_alone(descriptor):
    """Neither `claim` nor `give_back` touch what belongs to an event loop of the program."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    wakeup.claim(engine(), lambda number: None)
    assert signal.set_wakeup_fd(writing) == writing
    wakeup.give_back()
    assert signal.set_wakeup_fd(-1) == writing
    os.close(reading)
    os.close(writing)


def test_a_loop_that_cannot_be_woken_is_missed_at_once(tmp_path, monkeypatch):
    """Its number is a file of the program's by now: nothing is written there, and callers know."""
    losses = []
    monkeypatch.setattr(loop_thread, "_loss_callbacks", [losses.append])
    thread = LoopThread()
    bell = thread.loop._csock.fileno()  # what the program closes without knowing
    ours = os.dup(bell)
    taken = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)

    async def work():
        return 1

    try:
        waiting = thread.submit(lambda: asyncio.sleep(60))
        os.dup2(taken, bell)
        assert thread.is_alive  # nobody has needed the loop yet
        thread.call_soon(lambda: None)
        assert not thread.is_alive
        assert [str(loss) for loss in losses] == [
            "the program has closed this library's file descriptors"
        ]
        for refused in (lambda: thread.submit(work), lambda: waiting.result(10)):
            with pytest.raises(InternalError, match="file descriptors"):
                refused()
        assert os.fstat(taken).st_size == 0
    finally:
        os.dup2(ours, bell)
        os.close(ours)
        os.close(taken)
