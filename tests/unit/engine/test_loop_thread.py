"""The bridge to the engine thread."""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading

import pytest

from metrana_async.engine import wakeup
from metrana_async.engine.loop_thread import engine

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
