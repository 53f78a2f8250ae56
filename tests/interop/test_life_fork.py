"""Forked, spawned and served processes that hold an inherited or pickled handle. Nobody hangs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

PATIENCE_S = 30


def run(place, code):
    """Run a script that has to end in time, without a word."""
    # Python 3.12 and later warn of every fork beside threads.
    done = place.script(code, timeout_s=PATIENCE_S, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def values(place, metric):
    return [value for _, value in place.points(metric)]


def balanced(place):
    """State and writers of the run; its ledger balances."""
    with place.reader() as reader:
        assert reader.ledger("run").difference == 0
        info = reader.run("run")
    return info.state, len(info.writers)


@pytest.mark.fault_row("B1")
@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "raise SystemExit", "pass"])
def test_a_fork_that_logs(place, ending):
    """The child logs as a writer of its own; flushed or ended in order, its points are there."""
    out = run(
        place,
        f"""
        run = metrana.init(run_name="run")
        run.log("parent", 1.0)
        child = os.fork()
        if not child:
            metrana.log("child", [5.0, 6.0])
            run.log_distributed("both", 2.0, step=1)
            metrana.flush(10)
            {ending}
        else:
            run.log_distributed("both", 1.0, step=0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            run.log("parent", 2.0)
            print(run.close(10).is_complete)
        """,
    )
    assert out == "True\n"
    assert (values(place, "parent"), values(place, "child")) == ([1.0, 2.0], [5.0, 6.0])
    assert place.points("both") == [(0, 1.0), (1, 2.0)]
    assert balanced(place) == ("finished", 2)


def test_a_fork_that_ends_in_order_needs_no_flush(place):
    """A child that just runs out stores what it logged, like any program."""
    run(
        place,
        """
        run = metrana.init(run_name="run")
        child = os.fork()
        run.log("child" if not child else "parent", 1.0)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert (values(place, "parent"), values(place, "child")) == ([1.0], [1.0])


@pytest.mark.fault_row("B2")
@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "pass"])
def test_a_fork_that_does_not_log(place, ending):
    """It leaves nothing and takes nothing: points in the parent's inbox are sent once."""
    run(
        place,
        f"""
        run = metrana.init(run_name="run")
        for k in range(50):
            run.log("parent", float(k))
            child = os.fork() if k % 10 == 5 else -1
            if not child:
                {ending}
                break
            if child > 0:
                assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert values(place, "parent") == [float(k) for k in range(50)]
    assert balanced(place) == ("finished", 1)


@pytest.mark.fault_row("B1", "B3")
def test_forks_while_threads_log(place):
    """Forked in the middle of everything, each child logs and ends; the parent misses nothing."""
    run(
        place,
        """
        import threading
        run = metrana.init(run_name="run")
        over = threading.Event()
        def work(name):
            k = 0
            while not over.is_set():
                run.log(name, float(k)); k += 1
                run.log_rl_environment_step("r-" + name, [[1.0] * 8] * 4, k, list("abcd"), 0)
                if k % 50 == 0: over.wait(0.001)
            run.log("count", float(k), labels={"of": name})
        threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(3)]
        [t.start() for t in threads]
        for n in range(8):
            child = os.fork()
            if not child:
                run.log_distributed("child", float(n), step=n)
                run.close(10)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        [t.join() for t in threads]
        """,
    )
    for i in range(3):
        ((_, count),) = place.points("count", labels={"of": f"t{i}"})
        assert values(place, f"t{i}") == [float(k) for k in range(int(count))]
    assert place.points("child") == [(n, float(n)) for n in range(8)]
    state, writers = balanced(place)
    assert (state, writers) == ("finished", 9)


@pytest.mark.fault_row("B4")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(place, tmp_path, method):
    """Handles go along to workers of every start method; what workers log is there."""
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import multiprocessing, os
import metrana_sync_shim as metrana

def work(handle, n):
    handle.log_distributed("worker", float(n), step=n)
    handle.log("own", float(n), labels={{"n": str(n)}})

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    run = metrana.init(run_name="run")
    run.log("parent", 1.0)
    workers = [context.Process(target=work, args=(run, n)) for n in range(3)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    assert [w.exitcode for w in workers] == [0, 0, 0]
    with context.Pool(2) as pool:
        pool.starmap(work, [(run, n) for n in (3, 4)])
        pool.close(); pool.join()
    run.log("parent", 2.0)
"""
    )
    done = place.script(f"""
        import subprocess
        sys.exit(subprocess.run([sys.executable, {str(script)!r}]).returncode)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert place.points("worker") == [(n, float(n)) for n in range(5)]
    assert values(place, "parent") == [1.0, 2.0]
    for n in range(5):
        assert place.points("own", labels={"n": str(n)}) == [(0, float(n))]


def test_a_thread_that_outlives_a_workers_function(place):
    """A multiprocessing child whose thread logs on after its function returned loses nothing."""
    run(
        place,
        """
        import multiprocessing, threading, time
        run = metrana.init(run_name="run")
        def late():
            for k in range(20):
                time.sleep(0.01)
                run.log("late", float(k))
        worker = multiprocessing.get_context("fork").Process(
            target=lambda: threading.Thread(target=late).start()
        )
        worker.start(); worker.join()
        assert worker.exitcode == 0
        """,
    )
    assert values(place, "late") == [float(k) for k in range(20)]


def test_a_process_pool_is_no_hindrance(place):
    """concurrent.futures pools of threads and processes beside an open run: the end comes."""
    run(
        place,
        """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        run = metrana.init(run_name="run")
        threads = ThreadPoolExecutor(4)
        processes = ProcessPoolExecutor(2)
        list(threads.map(lambda k: run.log_distributed("t", float(k), step=k), range(20)))
        assert list(processes.map(abs, range(-4, 0))) == [4, 3, 2, 1]
        threads.submit(lambda: [__import__("time").sleep(0.3), run.log("slow", 1.0)])
        """,
    )
    assert place.points("t") == [(k, float(k)) for k in range(20)]
    assert values(place, "slow") == [1.0]


def test_a_daemon_of_two_forks(place):
    """A process that goes into the background by two forks logs from there."""
    run(
        place,
        """
        import time
        run = metrana.init(run_name="run")
        read, write = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                run.log("daemon", 1.0)
                run.close(10)
                os.write(write, b"done")
            os._exit(0)
        os.wait()
        assert os.read(read, 4) == b"done"
        """,
    )
    assert values(place, "daemon") == [1.0]
