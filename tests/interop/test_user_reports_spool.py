"""User reports (`US-nn`) about data that must not be lost: ends, outages, offline runs, sync.

Where it makes sense a report is told three times: with the server there, after a retry (the first
requests fail), and offline with a sync at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrana_async.spool import layout
from tests.fault import proxy as faults
from tests.interop import spools
from tests.interop.life import eventually

pytestmark = pytest.mark.e2e

HANG_S = 40.0


@pytest.fixture
def site(place, server, tmp_path):
    """A project behind a network that can be cut."""
    yield from spools.site_of(place, server, tmp_path)


class Refusing:
    """Answers requests with what a tired server says, at random."""

    def __init__(self, seed, share=1.0, kinds=("429", "500", "cut", "hang up")):
        self.rng, self.share, self.kinds = random.Random(seed), share, kinds
        self.count = 0

    async def __call__(self, exchange):
        if self.rng.random() >= self.share:
            await exchange.say(await exchange.ask())
            return
        self.count += 1
        kind = self.rng.choice(self.kinds)
        if kind == "cut":  # the server has it, its answer is lost
            await faults.cut_before_answer(exchange)
        elif kind == "hang up":
            await faults.keep_alive_race(exchange)
        else:
            await exchange.request()
            words = {"429": b"429 Too Many Requests\r\nRetry-After: 0", "500": b"500 Oh\r\n"}[kind]
            await exchange.say(b"HTTP/1.1 " + words.strip() + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(params=["online", "retry", "offline"])
def way(request, site):
    """How points travel; `site.arrive()` ends the journey."""
    site.mode = "offline" if request.param == "offline" else "online"
    if request.param == "retry":
        site.proxy.inject(Refusing(7), times=3)
    if request.param == "offline":
        site.proxy.refuse()
    return request.param


def arrive(site):
    """Whatever is still on the disk goes to the server now, twice: the second adds nothing."""
    site.deliver()
    assert site.deliver() == 0


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
    arrive(site)
    assert site.values("x") == [float(i) for i in range(10)]
    assert site.info().state == ("failed" if ending.startswith("raise") else "finished")


# --- US-07 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_us07_children_log_what_they_log(site, way, tmp_path, method):
    """Two children of an initialized parent, 100 points each, no close: all of it, and they end."""
    script = tmp_path / "program.py"
    script.write_text(f"""
import multiprocessing as mp
import metrana_sync_shim as metrana

def work(run, i):
    for t in range(100):
        run.log(str(i), float(t), step=t)

if __name__ == "__main__":
    context = mp.get_context({method!r})
    run = metrana.init(run_name="run", init_mode={site.mode!r})
    children = [context.Process(target=work, args=(run, i)) for i in range(2)]
    [child.start() for child in children]
    [child.join({HANG_S}) for child in children]
    assert [child.exitcode for child in children] == [0, 0]
    run.log("parent", 1.0)
    run.close({HANG_S})
""")
    done = subprocess.run(
        [sys.executable, str(script)], env=site.variables(), capture_output=True, text=True,
        timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    arrive(site)
    for name in ("0", "1"):
        assert site.values(name) == [float(t) for t in range(100)]
    assert site.values("parent") == [1.0]


# --- US-08 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("outage", [False, True])
def test_us08_workers_that_never_log_are_unaffected(site, outage):
    """Forked workers collect garbage and end, round after round; the parent's count is exact."""
    program = site.begin("""
        import gc
        run = metrana.init(run_name="run")
        run.log("x", 0.0); run.flush(20)
        say("up"); wait()
        over = threading.Event()
        count = 1
        def work():
            global count
            while not over.wait(0.001):
                run.log("x", float(count)); count += 1
        thread = threading.Thread(target=work); thread.start()
        for _ in range(10):
            children = []
            for _ in range(8):
                child = os.fork()
                if not child:
                    gc.collect()
                    sys.exit(0)
                children.append(child)
            assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
        over.set(); thread.join()
        say(count); wait()
    """, environment={"PYTHONWARNINGS": "ignore::DeprecationWarning"})  # fmt: skip
    assert program.stdout.readline() == "up\n"
    if outage:
        site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    count = int(program.stdout.readline())
    site.proxy.listen()
    status, errors = site.end(program)
    assert status == 0, errors
    arrive(site)
    assert site.values("x") == [float(i) for i in range(count)]
    assert len(site.info().writers) == 1


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
    arrive(site)
    values = site.values("x")
    print(f"{len(values)} points survived")
    assert len(values) >= 500
    assert values == [float(k) for k in range(len(values))]
    info = site.info()
    assert (info.state, info.config) == ("crashed", {"lr": 0.1})


# --- US-23 -------------------------------------------------------------------------------------
def test_us23_a_flaky_server_neither_raises_nor_stalls(site):
    """429, 500, cut answers, hang-ups while the loop logs: no exception; all stored once."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    flaky = Refusing(seed, share=0.7)
    program = site.begin("""
        run = metrana.init(run_name="run")
        run.log("x", 0.0); run.flush(20)
        say("up"); wait()
        slowest = 0.0
        for k in range(1, 300):
            started = time.perf_counter()
            run.log("x", float(k))
            slowest = max(slowest, time.perf_counter() - started)
            time.sleep(0.01)
        say(slowest); wait()
        assert run.close(60).is_complete
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(flaky)
    program.stdin.write("\n")
    program.stdin.flush()
    print("slowest call", program.stdout.readline(), "faults", flaky.count)
    site.proxy.heal()
    status, errors = site.end(program, timeout_s=80)
    assert status == 0, errors
    assert flaky.count > 2
    assert site.values("x") == [float(k) for k in range(300)]


# --- US-30 -------------------------------------------------------------------------------------
def test_us30_a_disk_that_takes_no_more(site):
    """Files may not grow beyond 256 KiB and the server is away: counted, told, delivered later."""
    site.proxy.refuse()
    program = site.begin("""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = metrana.init(run_name="run", init_mode="auto")
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, resource.RLIM_INFINITY))
        for k in range(200_000): run.log("x", float(k))
        say("logged"); wait()
        while run.get_metrics().in_flight + run.get_metrics().spooled: time.sleep(0.05)
        run.log("x", -1.0)
        info = run.close(50)
        say(sum(info.statistics.lost.values()), info.statistics.committed)
    """)
    assert program.stdout.readline() == "logged\n"
    site.proxy.listen()
    status, errors = site.end(program, timeout_s=100)
    assert status == 0, errors

    assert "the disk spool" in errors, "no file came to its limit"
    assert len(errors.splitlines()) <= 10, errors
    arrive(site)
    values = site.values("x")
    assert values[-1] == -1.0
    assert len(values) == 200_001


def test_us30_a_spool_that_cannot_be_written_to(site):
    """The directory is somebody else's: said once, the run goes on, and nothing is lost online."""
    site.spool.write_text("a file where a directory should be")
    status, errors = site.run("""
        run = metrana.init(run_name="run")
        for k in range(1000): run.log("x", float(k))
        assert run.close(30).is_complete
    """)
    assert status == 0, errors
    assert errors.count("SpoolWarning") <= 1
    assert site.values("x") == [float(k) for k in range(1000)]


# --- US-47 -------------------------------------------------------------------------------------
class Poisoned:
    """The server will never take a request with a certain name in it."""

    def __init__(self):
        self.count = 0

    async def __call__(self, exchange):
        if b"poison" not in await exchange.request():
            await exchange.say(await exchange.ask())
            return
        self.count += 1
        body = b'{"error":{"code":"rejected","message":"poison is not taken","hint":null}}'
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
        await exchange.say(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def test_us47_what_the_server_never_takes_holds_nothing_up(site):
    """A batch that is refused for good is counted and told; what comes before and after flows."""
    poisoned = Poisoned()
    site.proxy.inject(poisoned)
    program = site.begin("""
        run = metrana.init(run_name="run")
        for k in range(50): run.log("good", float(k))
        run.flush(20)
        run.log("poison", 1.0)
        run.flush(20)
        for k in range(50, 100): run.log("good", float(k))
        info = run.close(30)
        say(info.statistics.committed, sum(info.statistics.rejected.values()))
    """)
    assert program.stdout.readline() == "100 1\n"
    status, errors = site.end(program)
    assert status == 0, errors
    assert "refused" in errors
    assert poisoned.count > 0
    assert site.values("good") == [float(k) for k in range(100)]


# --- US-48 -------------------------------------------------------------------------------------
def test_us48_a_lost_answer_stores_nothing_twice(site):
    """One answer in three is lost after the server stored: 5,000 points, 500 of them NaN."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    lossy = Refusing(seed, share=0.34, kinds=("cut",))
    site.proxy.inject(lossy)
    status, errors = site.run("""
        run = metrana.init(run_name="run")
        for k in range(5000):
            run.log("x", float("nan") if k % 10 == 3 else 1.0, timestamp=1_700_000_000_000)
            if k % 250 == 249: run.flush(60)
        assert run.close(60).is_complete
    """)
    assert status == 0, errors
    assert lossy.count > 2
    values = site.values("x")
    assert len(values) == 5000
    assert [k for k, value in enumerate(values) if value != value] == list(range(3, 5000, 10))


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
    arrive(site)
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


# --- US-52 -------------------------------------------------------------------------------------
def test_us52_an_outage_in_the_middle_of_a_run(site):
    """No server for a while, no action of the user: everything in order, the run finished."""
    program = site.begin("""
        run = metrana.init(run_name="run")
        k = 0
        def log_until(count):
            global k
            while k < count:
                run.log("x", float(k)); k += 1
                time.sleep(0.002)
        log_until(300); run.flush(20)
        say("up"); wait()
        log_until(600); backlog = run.flush(20).spooled
        say(backlog); wait()
        log_until(900)
        assert run.close(50).is_complete
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "300\n"
    site.proxy.listen()
    status, errors = site.end(program, timeout_s=80)
    assert status == 0, errors
    assert not site.directories()
    assert site.values("x") == [float(k) for k in range(900)]
    assert site.info().state == "finished"


# --- US-65 -------------------------------------------------------------------------------------
def test_us65_a_lock_of_the_program_around_flush(site):
    """A thread holds a lock that the program's warning hook wants: flush ends, and all arrives."""
    program = site.begin("""
        import warnings
        lock = threading.Lock()
        shown = threading.Event()
        def show(*args, **more):
            with lock: shown.set()
        run = metrana.init(run_name="run")
        run.log("x", 0.0); run.flush(20)
        warnings.showwarning = show
        say("up"); wait()
        def work():
            with lock:
                run.log("x", 1.0)
                try:
                    run.flush(2)
                except metrana.WaitTimeoutError:
                    pass
                say("through")
        thread = threading.Thread(target=work); thread.start(); thread.join()
        assert shown.wait(30)
        wait()
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "through\n"
    site.proxy.listen()
    assert site.end(program)[0] == 0
    arrive(site)
    assert site.values("x") == [0.0, 1.0]


def test_us65_callers_are_released_when_the_engine_dies(site):
    """Eight threads inside flush, and the engine's loop stops: each gets an error, none hangs."""
    program = site.begin("""
        from metrana_async.engine.loop_thread import engine
        run = metrana.init(run_name="run")
        run.log("x", 0.0); run.flush(20)
        say("up"); wait()
        run.log("x", 1.0)
        ends = []
        inside = threading.Barrier(9)
        def work():
            inside.wait()
            try:
                run.flush(600)
            except metrana.MetranaError as error:
                ends.append(str(error))
        threads = [threading.Thread(target=work) for _ in range(8)]
        [thread.start() for thread in threads]
        inside.wait()
        time.sleep(0.5)  # all of them are in their waits
        engine().loop.call_soon_threadsafe(engine().loop.stop)
        [thread.join(30) for thread in threads]
        say(len(ends), {end for end in ends})
        os._exit(0)
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(faults.black_hole)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "8 {'the engine thread has ended'}\n"
    site.end(program)


# --- US-70 -------------------------------------------------------------------------------------
def test_us70_nothing_global_is_changed(site, way):
    """What belongs to the process is the same after import, and again after close.

    But for one variable: the job's id, by which later children find the run.
    """
    status, errors = site.run(f"""
        import asyncio, logging, multiprocessing.process, socket, warnings
        for name in [name for name in sys.modules if name.startswith("metrana")]:
            del sys.modules[name]
        def environment():
            return {{k: v for k, v in os.environ.items() if k != "METRANA_ORCHESTRATION_ID"}}
        def found():
            return [
                os.fork, multiprocessing.process.BaseProcess.run,
                [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
                sys.stdout, sys.stderr, sys.excepthook, threading.excepthook, asyncio.run,
                type(asyncio.get_event_loop_policy()), logging.root.level,
                list(logging.root.handlers), list(warnings.filters), socket.getdefaulttimeout(),
                environment(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile(),
            ]
        before = found()
        import metrana_sync_shim as metrana
        assert found() == before
        run = metrana.init(run_name="run", init_mode={site.mode!r})
        run.log("x", [1.0, 2.0])
        during = found()
        during[2] = before[2]  # SIGTERM and SIGHUP are handled while a run is open
        assert during == before
        run.close(30)
        assert found() == before
    """)
    assert status == 0, errors
    arrive(site)
    assert site.values("x") == [1.0, 2.0]


# --- US-71 -------------------------------------------------------------------------------------
def test_us71_one_trial_that_fails_harms_no_other(site, way, tmp_path):
    """Five trials in processes, the third raises: its run failed, the others are complete."""
    script = tmp_path / "trials.py"
    script.write_text(f"""
import multiprocessing as mp
import metrana_sync_shim as metrana

def trial(n):
    run = metrana.init(run_name=f"trial{{n}}", init_mode={site.mode!r})
    for i in range(10):
        if (n, i) == (3, 4):
            raise RuntimeError("trial 3")
        run.log("x", float(i))

if __name__ == "__main__":
    workers = [mp.get_context("spawn").Process(target=trial, args=(n,)) for n in range(1, 6)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    print([worker.exitcode for worker in workers])
""")
    done = subprocess.run(
        [sys.executable, str(script)], env=site.variables(), capture_output=True, text=True,
        timeout=58, check=False,
    )  # fmt: skip
    assert done.stdout == "[0, 0, 1, 0, 0]\n", done.stderr
    arrive(site)
    for n in range(1, 6):
        assert site.values("x", run=f"trial{n}") == [float(i) for i in range(4 if n == 3 else 10)]
        assert site.info(f"trial{n}").state == ("failed" if n == 3 else "finished")


def test_us71_one_run_after_the_other_in_one_process(site, way):
    """Five runs, steps 1 to 9 each: every run has its own nine points."""
    status, errors = site.run(f"""
        for n in range(5):
            with metrana.init(run_name=f"run{{n}}", init_mode={site.mode!r}) as run:
                for step in range(1, 10): run.log("x", float(n), step=step)
    """)
    assert status == 0, errors
    arrive(site)
    for n in range(5):
        assert site.points("x", run=f"run{n}") == [(step, float(n)) for step in range(1, 10)]


# --- US-73 -------------------------------------------------------------------------------------
def test_us73_a_second_sync_and_a_second_place(site, tmp_path):
    """Of three offline runs one has no readable head: it is named, and copies add nothing."""
    for n in range(3):
        status, errors = site.run(
            f"metrana.init(run_name='run{n}', init_mode='offline').log('x', [1.0, 2.0, 3.0])"
        )
        assert status == 0, errors
    broken = next(
        Path(d) for d in site.directories()
        if b'"run1"' in (Path(d) / layout.META).read_bytes()
    )  # fmt: skip
    (broken / layout.META).write_bytes(b"")
    shutil.copytree(site.spool, copy := tmp_path / "elsewhere")
    status, reports = site.sync()
    assert status == 1
    states = sorted((report["state"], report["run"][-4:]) for report in reports)
    assert states == [("delivered", "run0"), ("delivered", "run2"), ("kept", "")]
    (kept,) = [report for report in reports if report["state"] == "kept"]
    assert kept["directory"] == str(broken)
    assert "META" in kept["text"]
    for spool in (site.spool, copy):
        status, reports = site.sync(spool=spool)
        assert status == 1
    with site.reader() as reader:
        assert sorted(run.name for run in reader.runs()) == ["run0", "run2"]
        for name in ("run0", "run2"):
            ledger = reader.ledger(name)
            assert (ledger.visible, ledger.duplicate, ledger.difference) == (3, 0, 0)


# --- US-74 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["first first", "last first"])
def test_us74_two_offline_sessions_of_one_run(site, order):
    """Session 2 rewrites steps 50 to 59: its values stay, whichever is synced first."""
    sessions = []
    for first, last, value in ((0, 100, 1.0), (50, 60, 2.0)):
        before = set(site.directories())
        status, errors = site.run(
            f"""
            run = metrana.init(run_name="run", init_mode="offline", resume_strategy="allow")
            for step in range({first}, {last}): run.log("x", {value}, step=step)
            run.log_config({{"session{int(value)}": True}})
            """
        )
        assert status == 0, errors
        sessions += set(site.directories()) - before
    for directory in sessions if order == "first first" else sessions[::-1]:
        status, reports = site.sync(spool=Path(directory))
        assert (status, [report["state"] for report in reports]) == (0, ["delivered"])
    assert site.points("x") == [(k, 2.0 if 50 <= k < 60 else 1.0) for k in range(100)]
    assert site.info().config == {"session1": True, "session2": True}


# --- US-85 -------------------------------------------------------------------------------------
def test_us85_an_outlier_step_throws_nothing_away(site, way):
    """Step 10**6 by mistake, then 4, 5, 6: four points, also when losses are errors."""
    status, errors = site.run(f"""
        run = metrana.init(
            run_name="run", init_mode={site.mode!r}, delivery_policy="all_or_crash"
        )
        for step in (10**6, 4, 5, 6): run.log("x", 1.0, step=step)
        for k in range(10_000): run.log("many", float(k))
        run.flush(50)
    """)
    assert status == 0, errors
    arrive(site)
    assert site.points("x") == [(step, 1.0) for step in (4, 5, 6, 10**6)]
    assert site.values("many") == [float(k) for k in range(10_000)]


def test_us85_a_loss_is_an_error_where_that_is_asked_for(site):
    """No server, no spool, and the queue is full: the call raises, a documented class each."""
    site.proxy.inject(faults.black_hole)
    status, errors = site.run("""
        run = metrana.init(
            run_name="run", disk=None, queue_capacity=1000, backpressure_strategy="raise",
            delivery_policy="all_or_crash",
        )
        from metrana_async import pump
        pump.OUTBOX_BYTES = 1000
        try:
            while True: run.log("x", [1.0] * 500)
        except metrana.QueueFullError:
            say("full")
        try:
            run.close(0.5)
        except metrana.DataLossError as error:
            say(sum(error.lost_points.values()) > 0)
    """)
    assert status == 0, errors


# --- US-86 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("server_is", ["up", "down", "black-holed"])
def test_us86_a_run_starts_at_once_under_auto(site, server_is):
    """Whether the server is there, refuses, or swallows everything: training begins."""
    if server_is == "down":
        site.proxy.refuse()
    if server_is == "black-holed":
        site.proxy.inject(faults.black_hole, path="")
    program = site.begin("""
        started = time.perf_counter()
        run = metrana.init(run_name="run", init_mode="auto")
        opened = time.perf_counter()
        run.log("x", 1.0)
        say(f"init {opened - started:.3f} s, first log {time.perf_counter() - opened:.6f} s")
        wait()
        run.close(2)
    """)
    print(server_is, program.stdout.readline())
    site.proxy.heal()
    site.proxy.listen()
    status, errors = site.end(program, timeout_s=HANG_S)
    assert status == 0, errors
    site.deliver()
    assert site.values("x") == [1.0]


# --- US-87 -------------------------------------------------------------------------------------
RESERVED = {"con", "prn", "aux", "nul", *(f"{n}{k}" for n in ("com", "lpt") for k in range(1, 10))}


@pytest.mark.parametrize("name", ["a:b", "CON", "x.", "é" * 200, "../up", "a/b\\c"])
def test_us87_names_never_reach_the_file_system(site, tmp_path, name):
    """Whatever a run is called, paths are digests and plain words; it is delivered all the same."""
    status, errors = site.run(f"""
        run = metrana.init(run_name={name!r}, init_mode="offline")
        run.log("Samples / training samples", 1.0)
        run.close()
    """)
    if status != 0:
        assert "InvalidNameError" in errors  # refused with words is as good
        return
    paths = [path.relative_to(tmp_path) for path in tmp_path.rglob("*")]
    assert paths
    for part in {part for path in paths for part in path.parts}:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", part), part
        assert part.split(".")[0].lower() not in RESERVED
        assert not part.endswith((".", " "))
    arrive(site)
    assert site.values("Samples / training samples", run=name) == [1.0]


def test_us87_an_open_spool_file_and_a_pickled_run(site, tmp_path):
    """Another process has a segment open while it is delivered; a spawned child logs too."""
    script = tmp_path / "program.py"
    script.write_text("""
import multiprocessing as mp
import metrana_sync_shim as metrana

def work(run):
    run.log_distributed("x", 1.0, step=1)

if __name__ == "__main__":
    run = metrana.init(run_name="run", init_mode="offline")
    run.log_distributed("x", 0.0, step=0)
    child = mp.get_context("spawn").Process(target=work, args=(run,))
    child.start(); child.join()
    assert child.exitcode == 0
""")
    done = subprocess.run(
        [sys.executable, str(script)], env=site.variables(), capture_output=True, text=True,
        timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with contextlib.ExitStack() as stack:
        for path in site.spool.rglob("*"):
            if path.is_file():
                stack.enter_context(path.open("rb"))
        arrive(site)
    assert site.points("x") == [(0, 0.0), (1, 1.0)]
