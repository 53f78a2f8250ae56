"""Facts about the end of a process, signals and forks, in real interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

# The server lives in the child's memory; its contents are printed by the last exit handler: who
# registered before the package was imported is called after it.
PROLOGUE = """
import atexit, os, signal, sys, threading
atexit.register(lambda: is_started and show())
is_started = False
from metrana_async.testing import MemoryServer
import metrana_sync_shim as metrana

server = MemoryServer()
server.start()

def show():
    row = server.store.runs()[0]
    values = []
    for series in server.store.run_contents(row.run_no).series:
        values += server.store.read_points(series.series_no).value.tolist()
    print(row.state, row.exception_type, values, flush=True)

def start(**arguments):
    global is_started
    is_started = True
    return metrana.init(
        project_name="p", run_name="r", transport=server.transport(), quiet=True, **arguments
    )
"""


def run(code: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("METRANA_")}
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_an_ordinary_end_stores_everything():
    """A program that just ends loses nothing, and its exit code stays 0."""
    done = run("start(); metrana.log('m', 1.0); metrana.log('m', 2.0)")
    assert (done.stdout, done.returncode) == ("finished None [1.0, 2.0]\n", 0), done.stderr


def test_an_unhandled_exception_fails_the_run():
    """The state keeps the exception's type; traceback and exit code are Python's own."""
    done = run("start(); metrana.log('m', 1.0); raise ZeroDivisionError('boom')")
    assert done.stdout == "failed ZeroDivisionError [1.0]\n", done.stderr
    assert done.returncode == 1
    assert "ZeroDivisionError: boom" in done.stderr


def test_sys_exit_keeps_its_code():
    """Flushing at exit never changes the exit code."""
    done = run("start(); metrana.log('m', 1.0); sys.exit(7)")
    assert done.stdout.endswith("None [1.0]\n"), done.stderr
    assert done.returncode == 7


def test_logging_from_a_thread_that_outlives_main():
    """Intake is open while non-daemon threads still log."""
    done = run("""
        start()
        metrana.log('m', 1.0)
        thread = threading.Thread(target=lambda: metrana.log('m', 2.0))
        thread.start()
        thread.join()
    """)
    assert done.stdout == "finished None [1.0, 2.0]\n", done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_sigterm_stores_and_dies_of_sigterm():
    """The default disposition is kept: everything is stored, then the signal does its work."""
    done = run("""
        real_kill = os.kill
        def kill(pid, number):
            show()
            real_kill(pid, number)
        start()
        os.kill = kill
        metrana.log('m', 1.0)
        real_kill(os.getpid(), signal.SIGTERM)
    """)
    assert done.stdout == "stopped None [1.0]\n", done.stderr
    assert done.returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_sigterm_while_the_caller_holds_a_lock():
    """The handler lets the code it interrupted go on, so that the engine gets the lock."""
    done = run("""
        real_kill = os.kill
        def kill(pid, number):
            show()
            real_kill(pid, number)
        handle = start()
        metrana.log('m', 1.0)
        metrana.flush(10)
        from metrana_async.engine import lifecycle
        inbox = handle._run.front.inbox
        with inbox._lock:
            inbox.items.append((0, -1, 0, 2.0))
            real_kill(os.getpid(), signal.SIGTERM)
            while lifecycle._terminating is None:
                pass
        os.kill = kill
        threading.Event().wait(30)
    """)
    assert done.stdout == "stopped None [1.0, 2.0]\n", done.stderr
    assert done.returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_users_sigterm_handler_stays():
    """A handler that is there already is never replaced."""
    done = run("""
        signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))
        start()
        metrana.log('m', 1.0)
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert done.stdout == "mine\nfinished None [1.0]\n", done.stderr
    assert done.returncode == 0


def test_a_dead_server_does_not_hold_the_exit():
    """The exit budget ends a hopeless flush, and says so."""
    done = run("""
        from metrana_async.engine import lifecycle
        lifecycle.EXIT_BUDGET_S = 0.5
        start()
        metrana.log('m', 1.0)
        server.is_reachable = False
    """)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def place(tmp_path):
    """The data directory of a real local server that lives as long as the test."""
    server = subprocess.Popen(
        [sys.executable, "-m", "metrana_async.server", "--data-dir", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert " on http" in server.stderr.readline()
    yield str(tmp_path)
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=20)


@pytest.mark.e2e
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_logs_as_its_own_writer(place):
    """An inherited handle works in the child: another writer, one run, nothing lost or doubled."""
    done = run(f"""
        run = metrana.init(project_name="p", run_name="r", data_dir={place!r}, quiet=True)
        metrana.log("parent", 1.0)
        before = run._run.front.writer.writer_id
        child = os.fork()
        if child == 0:
            metrana.log("child", 2.0)
            metrana.log("child", 3.0)
            is_new = run._run.front.writer.writer_id != before
            info = metrana.close(20)
            os._exit(0 if is_new and info.statistics.committed == 2 else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        metrana.log("parent", 4.0)
        info = metrana.close(20)
        print(status, info.statistics.committed, info.is_complete)
    """)
    assert done.stdout == "0 2 True\n", done.stderr


@pytest.mark.e2e
def test_a_pickled_handle_joins_the_run_elsewhere(place):
    """Another process unpickles a handle and logs to the same run, as a writer of its own."""
    child = (
        "import asyncio, pickle, sys; run = pickle.loads(sys.stdin.buffer.read()); "
        "run.log('m', 2.0); "
        "print(run.name, asyncio.run(run.close(20)).statistics.committed)"
    )
    done = run(f"""
        import asyncio, pickle, subprocess
        import metrana_async
        async def main():
            async with metrana_async.init(
                project_name="p", run_name="r", data_dir={place!r}, quiet=True
            ) as run:
                await run.log("m", 1.0)
                await run.flush(20)
                data = pickle.dumps(run)
            command = [sys.executable, "-c", {child!r}]
            print(subprocess.run(command, input=data, stdout=subprocess.PIPE).stdout.decode())
        asyncio.run(main())
    """)
    assert done.stdout == "r 1\n\n", done.stderr
