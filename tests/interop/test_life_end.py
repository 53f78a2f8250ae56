"""How a program ends: its points, its exit code, its stderr, and the state of its run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.interop.conftest import JOB_VARIABLES, ROOT

pytestmark = pytest.mark.e2e

START = "run = metrana.init(run_name='run')\n"


def end_of(place):
    """State, exception type and the values of `m`."""
    with place.reader() as reader:
        info = reader.run("run")
        ledger = reader.ledger("run")
    assert ledger.difference == 0
    return info.state, info.exception_type, [value for _, value in place.points("m")]


def begin(place, code, **more):
    """A script that goes on while the test does something to it."""
    variables = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    variables |= {
        "METRANA_DATA_DIR": place.data_dir,
        "METRANA_PROJECT": place.project,
        "METRANA_QUIET": "1",
        "PYTHONPATH": str(ROOT),
    }
    head = "import os, sys, time, signal, threading\nimport metrana_sync_shim as metrana\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + START + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        **more,
    )


@pytest.mark.fault_row("A10")
@pytest.mark.parametrize(
    ("ending", "code", "state", "exception"),
    [
        ("pass", 0, "finished", None),
        # Python tells nobody of a SystemExit that ends the program: the state is `finished`.
        ("sys.exit(3)", 3, "finished", None),
        ("sys.exit(0)", 0, "finished", None),
        ("sys.exit('words')", 1, "finished", None),
        ("raise ZeroDivisionError('boom')", 1, "failed", "ZeroDivisionError"),
        ("class Own(ValueError): pass\nraise Own", 1, "failed", "Own"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "stopped", None),
        ("import asyncio\nraise asyncio.CancelledError", 1, "stopped", None),
        ("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)", -signal.SIGINT, "stopped", None),
        ("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)", -signal.SIGTERM, "stopped", None),
    ],
)
def test_an_end_without_close(place, ending, code, state, exception):
    """Whatever ends it: every point is there, the exit code is Python's, the state says why."""
    script = START + "import signal, time\nrun.log('m', [1.0, 2.0])\n" + ending
    done = place.script(script)
    assert end_of(place)[::2] == (state, [1.0, 2.0])
    assert end_of(place)[1] == exception
    assert done.returncode == code, done.stderr
    if not ending.startswith(
        ("raise", "class", "import", "sys.exit('words", "os.kill(os.getpid(), signal.SIGINT")
    ):
        assert done.stderr == ""


def test_os_exit_after_flush_leaves_what_was_flushed(place):
    """`os._exit` runs no hook: what was flushed is there, the run is found crashed in time."""
    done = place.script(START + "run.log('m', [1.0, 2.0]); run.flush(); os._exit(4)")
    assert (done.returncode, done.stderr) == (4, "")
    assert end_of(place)[2] == [1.0, 2.0]


@pytest.mark.fault_row("A19")
@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError"])
def test_a_thread_that_logs_after_main_ended(place, ending):
    """A non-daemon thread goes on logging when main is over: all of it arrives."""
    script = """
        def work():
            threading.main_thread().join()
            for k in range(50):
                run.log("m", float(k))
                time.sleep(0.01)
        threading.Thread(target=work).start()
    """
    done = place.script(START + "import threading, time\n" + textwrap.dedent(script) + ending)
    assert end_of(place)[2] == [float(k) for k in range(50)], done.stderr
    assert done.returncode == {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}[ending]
    if not ending.startswith("raise"):
        assert done.stderr == ""


def test_a_daemon_thread_that_logs_until_the_very_end(place):
    """A daemon thread may log while the process goes down; nothing is written about it."""
    done = place.script(
        START
        + textwrap.dedent("""
        import threading, time
        run.log("m", 1.0)
        def work():
            while True:
                try:
                    run.log("other", 1.0)
                except metrana.MetranaError:
                    return
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert end_of(place) == ("finished", None, [1.0])


def test_sigterm_in_a_busy_main_thread(place):
    """SIGTERM while main logs in a tight loop: what was logged is a prefix without a hole."""
    process = begin(
        place,
        """
        k = 0
        print("up", flush=True)
        while True:
            run.log("m", float(k)); k += 1
            if k % 100 == 0: time.sleep(0.001)
        """,
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(0.5)  # the script is to be hit while it logs, not as it begins
    process.terminate()
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (-signal.SIGTERM, "")
    state, _, values = end_of(place)
    assert state == "stopped"
    assert values == [float(k) for k in range(len(values))]
    assert len(values) > 1000


def test_sigterm_twice_and_sigterm_in_flush(place):
    """An impatient second SIGTERM, and one that finds main in `flush`, change nothing."""
    process = begin(
        place,
        """
        run.log("m", [1.0, 2.0])
        print("up", flush=True)
        while True:
            run.log("other", 1.0)
            run.flush()
        """,
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)  # as above: somewhere in the middle of its logging
    process.terminate()
    process.terminate()
    _, errors = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM, errors
    assert errors == ""
    assert end_of(place) == ("stopped", None, [1.0, 2.0])


def test_ctrl_c_in_the_middle_of_flush_and_close(place):
    """Ctrl-C during a wait raises KeyboardInterrupt there; the points still arrive."""
    process = begin(
        place,
        """
        run.log("m", [1.0, 2.0])
        print("up", flush=True)
        try:
            while True:
                run.log("other", 1.0)
                run.flush()
        except KeyboardInterrupt:
            run.log("m", 3.0)
            run.close()
            sys.exit(5)
        """,
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)  # as above: somewhere in the middle of its logging
    # Python drops a Ctrl-C that arrives in a weakref's callback, and says so: pressed again then.
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            break
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 5, errors
    assert not errors or "Exception ignored in" in errors, errors
    assert end_of(place)[2] == [1.0, 2.0, 3.0]


def test_an_exception_in_a_with_block_is_the_runs_end(place):
    """Leaving `with` by an exception fails the run; one that is caught afterwards too."""
    done = place.script("""
        try:
            with metrana.init(run_name="run") as run:
                run.log("m", 1.0)
                raise LookupError("x")
        except LookupError:
            pass
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert end_of(place) == ("failed", "LookupError", [1.0])


def test_an_atexit_function_of_the_program_may_still_log(place):
    """What a program's own exit functions log is refused with words, or stored."""
    done = place.script(
        "import atexit\n"
        + START
        + textwrap.dedent("""
        run.log("m", 1.0)
        @atexit.register
        def last():
            try:
                run.log("m", 2.0)
            except metrana.MetranaError as error:
                print(type(error).__name__)
            else:
                print(run.close(5).is_complete)
    """)
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout.strip()
    assert end_of(place)[2] == ([1.0, 2.0] if told == "True" else [1.0])
    assert told in ("True", "RunClosedError")


def test_ctrl_c_during_close_does_not_cut_it_short(place):
    """A close that was interrupted goes on; the end of the program waits for it."""
    done = place.script(
        START
        + textwrap.dedent("""
        import signal, threading
        for k in range(300_000):
            run.log("m", 1.0)
        main = threading.get_ident()
        threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGINT)).start()
        try:
            run.close()
        except KeyboardInterrupt:
            print("interrupted")
    """)
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "interrupted\n")
    assert len(end_of(place)[2]) == 300_000


@pytest.mark.parametrize("late", [False, True])
def test_a_server_with_a_name_is_reached_until_the_very_end(server, place, late):
    """Names are resolved while the program ends too, when executors take no more work."""
    code = """
        import asyncio, threading
        from metrana_async import opening
        from metrana_async.engine.loop_thread import engine
        run = metrana.init(run_name="run")
        async def forget():
            # As after a long pause: no connection, no remembered address.
            (writer,) = opening._present
            connector = writer.membership._transport._session.connector
            connector.clear_dns_cache()
            for connections in list(connector._conns.values()):
                for connection, _ in list(connections):
                    connection.close()
        def last():
            if LATE:
                threading.main_thread().join()
            run.log("m", 1.0)
            run.flush(10)
            engine().submit(forget).result(5)
            run.log("m", 2.0)
            if LATE:
                run.flush(5)
        thread = threading.Thread(target=last)
        thread.start()
        if not LATE:
            thread.join()
    """.replace("LATE", str(late))
    address = server.address
    done = place.script(
        code,
        METRANA_INGESTION_URL=address.url.replace("127.0.0.1", "localhost"),
        METRANA_API_KEY=address.token,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert end_of(place) == ("finished", None, [1.0, 2.0])


def test_a_thread_that_inits_after_main_ended(place):
    """A program whose main thread only starts others may open its run in one of them."""
    done = place.script("""
        import threading
        def work():
            threading.main_thread().join()
            metrana.init(run_name="run").log("m", [1.0, 2.0])
        threading.Thread(target=work).start()
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert end_of(place) == ("finished", None, [1.0, 2.0])
