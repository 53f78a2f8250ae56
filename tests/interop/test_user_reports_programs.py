"""User reports (`US-nn`) about what else runs: children, workers, locks, other runs, the engine.

Where it makes sense a report is told three times: with the server there, after a retry (the first
requests fail), and offline with a sync at the end.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fault import proxy as faults
from tests.interop import spools

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
    spools.arrive(site)
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
    spools.arrive(site)
    assert site.values("x") == [float(i) for i in range(count)]
    assert len(site.info().writers) == 1


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
    spools.arrive(site)
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
    spools.arrive(site)
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
    spools.arrive(site)
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
    spools.arrive(site)
    for n in range(5):
        assert site.points("x", run=f"run{n}") == [(step, float(n)) for step in range(1, 10)]
