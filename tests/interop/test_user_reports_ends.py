"""User reports (`US-nn`) about programs that end: in time, at once, by a signal, killed.

Where it makes sense a report is told three times: with the server there, after a retry (the first
requests fail), and offline with a sync at the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import pytest

from tests.fault import proxy as faults
from tests.interop import spools
from tests.interop.life import eventually

pytestmark = pytest.mark.e2e

HANG_S = 40.0


@pytest.fixture
def site(place, server, tmp_path):
    """A project behind a network that can be cut."""
    yield from spools.site_of(place, server, tmp_path)


@pytest.fixture(params=spools.WAYS)
def way(request, site):
    """How points travel; `arrive` ends the journey."""
    spools.set_out(site, request.param)
    return request.param


# --- US-05 -------------------------------------------------------------------------------------
def test_us05_a_close_that_never_gets_an_answer_ends_in_time_and_keeps(site):
    """The server swallows everything: close ends at its deadline, says what is where."""
    program = site.begin("""
        run = metrana.init(run_name="run")
        run.log("x", -1.0); run.flush(20)
        say("up"); wait()
        for i in range(1000): run.log("x", float(i))
        info = run.close(2)
        say(info.is_complete, info.statistics.spooled, dict(info.statistics.lost))
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(faults.black_hole)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "False 1000 {}\n"
    status, errors = site.end(program, timeout_s=HANG_S)
    assert status == 0
    assert "1000 points are kept on this machine" in errors
    assert "metrana-async sync" in errors
    site.deliver()
    assert site.values("x") == [float(i) for i in range(-1, 1000)]


# --- US-06 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError"])
def test_us06_a_script_that_simply_ends(site, way, ending):
    """No close: ten points are there, exit status and state are right, stderr is Python's."""
    status, errors = site.run(
        f"metrana.init(run_name='run', init_mode={site.mode!r})\n"
        f"for i in range(10): metrana.log('x', i)\n{ending}"
    )
    assert status == {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}[ending], errors
    assert ("Traceback" in errors) == ending.startswith("raise")
    if way == "online" and not ending.startswith("raise"):
        assert errors == ""
    spools.arrive(site)
    assert site.values("x") == [float(i) for i in range(10)]
    assert site.info().state == ("failed" if ending.startswith("raise") else "finished")


# --- US-19 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("repetition", range(3))
def test_us19_an_offline_run_that_is_killed(site, repetition):
    """SIGKILL: what was flushed is all there, the rest a prefix; configuration and state too."""
    program = site.begin("""
        run = metrana.init(run_name="run", init_mode="offline", config={"lr": 0.1})
        k = 0
        while True:
            run.log("x", float(k)); k += 1
            if k == 500:
                run.flush(); say("flushed")
            time.sleep(0.001)
    """)
    assert program.stdout.readline() == "flushed\n"
    time.sleep(0.1 + 0.3 * repetition)  # the moment of the kill is what varies
    program.kill()
    program.wait()
    spools.arrive(site)
    values = site.values("x")
    print(f"{len(values)} points survived")
    assert len(values) >= 500
    assert values == [float(k) for k in range(len(values))]
    info = site.info()
    assert (info.state, info.config) == ("crashed", {"lr": 0.1})


# --- US-49 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
@pytest.mark.parametrize("reaction", ["nothing", "close", "own handler"])
@pytest.mark.parametrize("is_out", [False, True], ids=["up", "out"])
def test_us49_a_signal_to_the_whole_process_group(site, number, reaction, is_out):
    """Ctrl-C or scancel hits every process: all points are there, the exit code is Python's."""
    handler = "signal.signal(NUMBER, lambda *_: sys.exit(9))" if reaction == "own handler" else ""
    caught = "run.close(5); sys.exit(8)" if reaction == "close" else "raise"
    program = site.begin(
        f"""
        NUMBER = {int(number)}
        {handler}
        run = metrana.init(run_name="run")
        run.log("x", 0.0); run.flush(20)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, b"x"); time.sleep(100)
            finally:
                os._exit(0)
        os.read(read, 1)
        say("up"); wait()
        for k in range(1, 500): run.log("x", float(k))
        try:
            say("logged")
            while True: time.sleep(1)
        except KeyboardInterrupt:
            {caught}
        """,
        start_new_session=True,
    )
    assert program.stdout.readline() == "up\n"
    if is_out:
        site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "logged\n"
    # Python drops a Ctrl-C that arrives in a weakref's callback, and says so: pressed again then.
    for _ in range(3):
        os.killpg(program.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(12)
            break
    status, errors = site.end(program, timeout_s=HANG_S)
    own = {"nothing": -number, "close": 8 if number == signal.SIGINT else -number}
    assert status == own.get(reaction, 9), errors
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    spools.arrive(site)
    assert site.values("x") == [float(k) for k in range(500)]
    states = {"nothing": "stopped", "own handler": "finished"}
    if number == signal.SIGTERM and reaction == "close":
        states["close"] = "stopped"
    assert site.info().state == states.get(reaction, "finished")


# --- US-50 -------------------------------------------------------------------------------------
def test_us50_an_actor_that_is_dropped(site):
    """Awaited flush at 500, then `os._exit`: 500 are stored, and a sync brings the rest."""
    program = site.begin("""
        import asyncio
        import metrana_async
        async def act():
            run = await metrana_async.init(run_name="run")
            for k in range(500): await run.log("x", float(k))
            await run.flush(20)
            say("flushed"); wait()
            for k in range(500, 1000): await run.log("x", float(k))
            say("logged"); wait()
            os._exit(0)
        asyncio.run(act())
    """)
    assert program.stdout.readline() == "flushed\n"
    site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "logged\n"
    eventually(lambda: site.points_on_disk() == 500, "the rest is on the disk")
    assert site.end(program)[0] == 0
    assert site.values("x") == [float(k) for k in range(500)]
    assert site.deliver() == 500
    assert site.values("x") == [float(k) for k in range(1000)]
