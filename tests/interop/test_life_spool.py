"""How a program ends while its server is there, away, or never asked: nothing is lost, none hangs.

The ends run under every CPython from 3.10 on that has the package here; absent ones are skipped
by name.
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

HANG_S = 25.0
"""Bound on what ends by itself: the exit budget is 10 s."""


@pytest.fixture
def site(place, server, tmp_path):
    """A project behind a network that can be cut."""
    yield from spools.site_of(place, server, tmp_path)


@pytest.fixture(params=spools.PYTHONS)
def any_python(request, site):
    """The site's programs run under this version."""
    site.python = spools.interpreter(request.param)
    return site


ENDS = {
    "end of main": ("", 0, "finished", None),
    "sys.exit": ("sys.exit(3)", 3, "finished", None),
    "exception": ("raise ZeroDivisionError('boom')", 1, "failed", "ZeroDivisionError"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -15, "stopped", None),
}


def check_stderr(errors, ending, *, is_told=False):
    """Python's own words and ours, and nothing else."""
    assert ("are kept on this machine" in errors) == is_told, errors
    assert "Exception ignored" not in errors
    assert "RuntimeError" not in errors
    assert "never awaited" not in errors
    assert ("Traceback" in errors) == (ending == "exception"), errors
    if ending != "exception" and not is_told:
        assert errors == ""


@pytest.mark.parametrize("ending", ENDS)
def test_an_end_offline(any_python, ending):
    """Offline everything is on the disk, and a later sync tells how the program ended."""
    code, status, state, exception = ENDS[ending]
    site = any_python
    site.proxy.refuse()
    found, errors = site.run(
        f"run = metrana.init(run_name='run', init_mode='offline')\nrun.log('m', [1.0, 2.0])\n{code}"
    )
    assert found == status, errors
    check_stderr(errors, ending)
    assert site.points_on_disk() == 2
    assert site.deliver() == 2
    info = site.info()
    assert (info.state, info.exception_type) == (state, exception)
    assert site.values() == [1.0, 2.0]


@pytest.mark.fault_row("A11")
@pytest.mark.parametrize("ending", ENDS)
def test_an_end_while_the_server_is_down(any_python, ending):
    """The server goes away before the end: on the disk in time, and delivered later."""
    code, status, state, exception = ENDS[ending]
    site = any_python
    program = site.begin(
        f"run = metrana.init(run_name='run')\nrun.log('m', 0.0); run.flush(20)\nsay('up')\nwait()\n"
        f"run.log('m', [1.0, 2.0])\n{code}"
    )
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    begun_s = time.monotonic()
    found, errors = site.end(program, timeout_s=HANG_S)
    print("ended after", round(time.monotonic() - begun_s, 2), "s")
    assert found == status, errors
    check_stderr(errors, ending, is_told=True)
    site.deliver()
    info = site.info()
    assert (info.state, info.exception_type) == (state, exception)
    assert site.values() == [0.0, 1.0, 2.0]


@pytest.mark.fault_row("A10")
@pytest.mark.parametrize("ending", ENDS)
def test_an_end_while_the_server_is_there(any_python, ending):
    """Everything is stored, nothing is said, nothing is left on the disk."""
    code, status, state, exception = ENDS[ending]
    site = any_python
    found, errors = site.run(
        f"run = metrana.init(run_name='run')\nrun.log('m', [1.0, 2.0])\n{code}"
    )
    assert found == status, errors
    check_stderr(errors, ending)
    assert not site.directories()
    info = site.info()
    assert (info.state, info.exception_type) == (state, exception)
    assert site.values() == [1.0, 2.0]


def test_an_end_in_an_outage_does_not_wait_for_the_exit_budget(site, monkeypatch):
    """Known to be down: one more try, the disk, and the program is gone."""
    program = site.begin("""
        from metrana_async.engine import lifecycle
        lifecycle.EXIT_BUDGET_S = 600.0
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        run.log("m", 1.0)
        while not run.flush(60).spooled: pass
        say("out")
        run.log("m", 2.0)
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    status, errors = site.end(program, timeout_s=HANG_S)
    assert status == 0, errors
    site.deliver()
    assert site.values() == [0.0, 1.0, 2.0]


def test_a_server_that_is_back_at_the_end_gets_everything(site):
    """The pause between two tries may be long; the end of the program asks once more."""
    program = site.begin("""
        from metrana_async.delivery import retry
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        retry.Backoff.delay_s = lambda self, error: 3600.0
        run.log("m", 1.0)
        while not run.flush(60).spooled: pass
        say("out"); wait()
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "out\n"
    site.proxy.listen()
    status, errors = site.end(program, timeout_s=HANG_S)
    assert status == 0
    assert "kept" not in errors
    assert site.values() == [0.0, 1.0]
    assert site.info().state == "finished"
    assert not site.directories()


def test_an_auto_run_whose_server_comes_at_the_very_end(site):
    """Started without a server, which answers when the program is through: all is delivered."""
    site.proxy.refuse()
    program = site.begin("""
        from metrana_async.delivery import retry
        retry.Backoff.delay_s = lambda self, error: 3600.0
        run = metrana.init(run_name="run", init_mode="auto")
        run.log("m", [1.0, 2.0])
        assert run.flush(20).spooled == 2
        say("out"); wait()
        time.sleep(0.2)  # the first try to join, which is in vain, is over
    """)
    assert program.stdout.readline() == "out\n"
    site.proxy.listen()
    assert site.end(program, timeout_s=HANG_S)[0] == 0
    site.deliver()
    assert site.values() == [1.0, 2.0]


SLOW = """
from metrana_async import spool_place
spool_place.WRITE_AFTER_S = 3600.0
"""
"""As on a network file system, but more so: by itself nothing is written for a long time."""


# --- signals -------------------------------------------------------------------------------------
LONG_CALLS = {
    "releases the GIL": "hashlib.pbkdf2_hmac('sha256', b'x' * 1000, b'y', 30_000_000)",
    "plain Python": "[None for _ in iter(int, 1)]",
    "sleeps": "time.sleep(30)",
}


@pytest.mark.fault_row("A6", "A7", "A8")
@pytest.mark.parametrize("call", LONG_CALLS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["TERM", "HUP"])
def test_a_signal_puts_everything_on_the_disk_at_once(site, call, number):
    """Also while the main thread is deep in a call of C code; SIGKILL follows: nothing is lost."""
    program = site.begin(
        f"""
        import hashlib
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        for k in range(1, 3000): run.log("m", float(k))
        say("logged")
        {LONG_CALLS[call]}
    """,
        head=SLOW,
    )
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(faults.black_hole)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "logged\n"
    program.send_signal(number)
    begun_s = time.monotonic()
    eventually(lambda: site.points_on_disk() >= 2999, "all of it is on the disk", patience_s=4)
    print(f"on the disk after {1000 * (time.monotonic() - begun_s):.0f} ms")
    program.kill()
    site.end(program)
    site.deliver()
    assert site.values() == [float(k) for k in range(3000)]


def test_without_the_wakeup_descriptor_the_handler_spills(site):
    """The descriptor is an event loop's of the program: Python's handler does it."""
    program = site.begin(
        """
        import asyncio
        async def main():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, say, "mine")
            descriptor = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(descriptor)
            run = metrana.init(run_name="run")
            assert signal.set_wakeup_fd(descriptor) == descriptor
            run.log("m", 0.0); run.flush(20)
            say("up"); wait()
            run.log("m", [1.0, 2.0])
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.1)
            say("logged")
            await asyncio.sleep(30)
        asyncio.run(main())
    """,
        head=SLOW,
    )
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(faults.black_hole)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "mine\n"
    assert program.stdout.readline() == "logged\n"
    program.terminate()
    eventually(lambda: site.points_on_disk() >= 2, "all of it is on the disk", patience_s=4)
    status, _ = site.end(program)
    assert status == -signal.SIGTERM
    site.deliver()
    assert site.values() == [0.0, 1.0, 2.0]


@pytest.mark.fault_row("A9")
@pytest.mark.parametrize("whose", ["handler", "ignored"])
def test_a_handler_of_the_program_stays_and_the_data_is_kept(site, whose):
    """SIGTERM is the program's own business, once and twice; what was logged is on the disk."""
    mine = {"handler": "lambda *_: say('mine')", "ignored": "signal.SIG_IGN"}[whose]
    program = site.begin(
        f"""
        signal.signal(signal.SIGTERM, {mine})
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        run.log("m", [1.0, 2.0])
        say("logged"); wait()
        sys.exit(7)
    """,
        head=SLOW if whose == "handler" else "",
    )
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(faults.black_hole)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "logged\n"
    program.terminate()
    if whose == "handler":
        assert program.stdout.readline() == "mine\n"
        program.terminate()
        assert program.stdout.readline() == "mine\n"
    eventually(lambda: site.points_on_disk() == 2, "it is on the disk", patience_s=4)
    site.proxy.heal()
    site.proxy.cut()
    status, errors = site.end(program)
    assert status == 7, errors
    assert site.values() == [0.0, 1.0, 2.0]
    assert site.info().state == "finished"


def test_nohup_stays_nohup(site):
    """A SIGHUP that is ignored stays so; the program goes on."""
    program = site.begin(
        """
        run = metrana.init(run_name="run")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        say("up"); wait()
        run.log("m", 1.0)
        """,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert program.stdout.readline() == "up\n"
    program.send_signal(signal.SIGHUP)
    assert site.end(program) == (0, "")
    assert site.values() == [1.0]


def test_signals_are_given_back_with_the_last_run(site):
    """Open, two runs, closed: handlers and the wakeup descriptor are as they were found."""
    status, errors = site.run("""
        def found():
            descriptor = signal.set_wakeup_fd(-1)
            if descriptor != -1:
                signal.set_wakeup_fd(descriptor)
            return [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)], descriptor
        before = found()
        for _ in range(2):
            one, two = metrana.init(run_name="one"), metrana.init(run_name="two")
            during = found()
            assert during[1] != -1 and signal.SIG_DFL not in during[0]
            one.close()
            assert found() == during
            two.close()
            assert found() == before == ([signal.SIG_DFL] * 2, -1)
            os.environ["METRANA_RESUME_STRATEGY"] = "allow"
    """)
    assert (status, errors) == (0, "")


def test_us05_ctrl_c_twice_ends_a_hopeless_close_at_once(site):
    """The first Ctrl-C leaves `close`; the second leaves the end of the program; all is kept."""
    program = site.begin("""
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        run.log("m", [1.0, 2.0])
        say("closing")
        try:
            run.close(300)
        except KeyboardInterrupt:
            say("interrupted")
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.inject(faults.black_hole)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "closing\n"
    time.sleep(0.3)  # somewhere in the wait of close
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "interrupted\n"
    time.sleep(0.3)  # somewhere in the wait of the end
    program.send_signal(signal.SIGINT)
    begun_s = time.monotonic()
    status, errors = site.end(program, timeout_s=8)  # without the second: 10 s and more
    print(f"gone after {time.monotonic() - begun_s:.2f} s")
    assert status == 0
    assert "2 points are kept" in errors
    site.deliver()
    assert site.values() == [0.0, 1.0, 2.0]


# --- exit functions, threads ----------------------------------------------------------------------
@pytest.mark.fault_row("A19")
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_exit_functions_of_the_program_may_log(any_python, mode):
    """Registered after the import: what they log is stored; before it: refused with words."""
    site = any_python
    status, errors = site.run(f"""
        import atexit
        atexit.register(lambda: run.log("m", 3.0))
        run = metrana.init(run_name="run", init_mode={mode!r})
        atexit.register(lambda: run.log("m", 2.0))
        def work():
            threading.main_thread().join()
            run.log("m", 1.0)
        threading.Thread(target=work).start()
    """)
    assert status == 0, errors
    assert "Traceback" not in errors
    site.deliver()
    assert site.values() == [1.0, 2.0, 3.0]
    assert site.info().state == "finished"


def test_an_exit_function_from_before_the_import_is_refused_with_words(site):
    """It runs when the run has ended: RunClosedError, not silence."""
    status, errors = site.run("""
        import atexit
        run = metrana.init(run_name="run")
        run.log("m", 1.0)
        from metrana_async.engine import lifecycle
        # As if it had been registered before everything else.
        def last():
            try:
                run.log("m", 2.0)
            except metrana.RunClosedError:
                say("refused")
        atexit.unregister(lifecycle._say_farewell)
        atexit.register(last)
        atexit.register(lifecycle._say_farewell)
    """)
    assert (status, errors) == (0, "")
    assert site.values() == [1.0]


@pytest.mark.fault_row("A12")
def test_an_end_right_after_the_first_log(any_python):
    """No name was ever resolved, no connection made: opened offline, or a name that is unknown."""
    site = any_python
    status, errors = site.run(
        "metrana.init(run_name='run', init_mode='auto').log('m', 1.0)",
        environment={"METRANA_INGESTION_URL": "http://no-such-host.invalid:80"},
    )
    assert status == 0, errors
    assert "Exception ignored" not in errors
    site.deliver()
    assert site.values() == [1.0]


@pytest.mark.fault_row("A5")
def test_os_exit_offline_after_flush(any_python):
    """`os._exit` runs nothing: what was flushed is on the disk, the run is told as crashed."""
    site = any_python
    status, errors = site.run("""
        run = metrana.init(run_name="run", init_mode="offline", config={"lr": 0.1})
        run.log("m", [1.0, 2.0]); run.flush()
        run.log("m", 3.0); os._exit(4)
    """)
    assert (status, errors) == (4, "")
    site.deliver()
    assert site.values()[:2] == [1.0, 2.0]
    assert site.info().state == "crashed"


def test_a_run_opened_by_an_exit_function(site):
    """A program may open its run when its main thread is long over."""
    status, errors = site.run("""
        import atexit
        @atexit.register
        def last():
            metrana.init(run_name="run", init_mode="offline").log("m", [1.0, 2.0])
    """)
    assert status == 0, errors
    site.deliver()
    assert site.values() == [1.0, 2.0]


# --- forks ---------------------------------------------------------------------------------------
@pytest.mark.fault_row("B5")
def test_a_child_does_not_keep_the_parents_spool(site):
    """The parent is killed, its forked child lives on: what the parent left is adopted at once."""
    site.proxy.refuse()
    program = site.begin("""
        run = metrana.init(run_name="run", init_mode="auto")
        run.log("m", [1.0, 2.0]); run.flush()
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        say(child)
        time.sleep(60)
    """)
    child = int(program.stdout.readline())
    try:
        program.kill()
        program.wait()
        os.kill(child, 0)
        site.proxy.listen()
        assert site.deliver() == 2
        assert site.values() == [1.0, 2.0]
        os.kill(child, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_an_offline_run_spool_for_themselves(any_python, tmp_path, method):
    """Every start method: each child has a directory of its own; one sync makes one run of all."""
    site = any_python
    script = tmp_path / "program.py"
    script.write_text(f"""
import multiprocessing, os
import metrana_sync_shim as metrana

def work(handle, n):
    handle.log_distributed("worker", float(n), step=n)
    handle.log("own", float(n), labels={{"n": str(n)}})

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    run = metrana.init(run_name="run", init_mode="offline")
    run.log("m", 1.0)
    workers = [context.Process(target=work, args=(run, n)) for n in range(3)]
    [w.start() for w in workers]
    [w.join(60) for w in workers]
    assert [w.exitcode for w in workers] == [0, 0, 0]
    run.log("m", 2.0)
""")
    done = subprocess.run(
        [site.python, str(script)],
        env=site.variables(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(site.directories()) == 4
    site.deliver()
    assert site.values() == [1.0, 2.0]
    assert site.points("worker") == [(n, float(n)) for n in range(3)]
    assert len(site.info().writers) == 4


def test_a_signal_to_a_child_is_not_the_parents(site):
    """A forked child dies of its own SIGTERM; the parent logs on and is not woken into leaving."""
    status, errors = site.run("""
        run = metrana.init(run_name="run")
        run.log("m", 1.0)
        child = os.fork()
        if not child:
            time.sleep(30)
            os._exit(77)  # else it would go on below, and end its whole process group
        os.kill(child, signal.SIGTERM)  # at once: it may come before the child's hooks have run
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        run.log("m", 2.0)
    """)
    assert (status, errors) == (0, "")
    assert site.values() == [1.0, 2.0]
    assert site.info().state == "finished"


@pytest.mark.fault_row("A20")
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_daemon_that_closes_every_descriptor(site, tmp_path, mode):
    """Two forks, `closerange`, files of its own at our old numbers: it logs, they stay clean."""
    status, errors = site.run(f"""
        run = metrana.init(run_name="run", init_mode={mode!r})
        run.log("m", 1.0)
        run.flush(20)
        first = os.fork()
        if not first:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.closerange(3, 1024)
            own = [open({str(tmp_path)!r} + f"/own{{k}}", "wb") for k in range(64)]
            run.log("daemon", [1.0, 2.0])
            os.kill(os.getpid(), signal.SIGCHLD)
            run.close(20)
            [file.close() for file in own]
            os.rename({str(tmp_path)!r} + "/own0", {str(tmp_path)!r} + "/done")
            os._exit(0)
        os.waitpid(first, 0)
        while not os.path.exists({str(tmp_path)!r} + "/done"):
            time.sleep(0.02)
    """)
    assert status == 0, errors
    site.deliver()
    assert (site.values(), site.values("daemon")) == ([1.0], [1.0, 2.0])
    own = [*tmp_path.glob("own*"), tmp_path / "done"]
    assert len(own) == 64
    assert [path for path in own if path.stat().st_size] == []
