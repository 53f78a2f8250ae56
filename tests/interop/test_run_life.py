"""The life of a run, as users of other trackers lost it (`US-nn`), on real server processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import InitError, NotFoundError, RunAlreadyExistsError
from metrana_async.wire import limits
from tests.conformance.runner import ServerProcess

from .conftest import JOB_VARIABLES, ROOT, Place
from .faults import faulty_transport


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServerProcess]]:
    """A server of this test alone, which thinks a writer dead after two seconds; [0] is current."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    servers = [ServerProcess(tmp_path / "data", "sqlite", "--writer-live", "2")]
    yield servers
    if metrana.is_initialized():
        metrana.close()
    servers[0].stop()


@pytest.fixture
def own_place(own_server: list[ServerProcess]) -> Place:
    """A project on it."""
    return Place("life", str(own_server[0].data_dir))


def wait_for(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Look every now and then until it is so; whether it became so in time."""
    ends_at = time.monotonic() + timeout_s
    looks = threading.Event()
    while not is_so():
        if time.monotonic() > ends_at:
            return False
        looks.wait(0.05)
    return True


def state_of(place: Place, run: str = "run") -> str:
    with place.reader() as reader:
        return reader.run(run).state


def python(place: Place, code: str) -> subprocess.Popen:
    """A script in a process of its own, with its stdout and stderr at hand."""
    head = f"import metrana_sync_shim as metrana\nPROJECT = {place.project!r}\n"
    variables = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    variables |= {"METRANA_DATA_DIR": place.data_dir, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )


# --- US-05 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("faults", [{"delay_s": 0.1}, {"fail_every": 3}])
def test_us05_close_returns_on_a_slow_and_on_a_failing_server(place, faults):
    """close() keeps its deadline and what was logged is stored, on servers slow or half broken."""
    run = place.init(transport=faulty_transport(place.data_dir, **faults))
    for i in range(1000):
        run.log("x", i)
    start = time.monotonic()
    info = run.close(close_timeout=10)
    assert time.monotonic() - start < 12
    assert info.is_complete
    assert len(place.points("x")) == 1000


def test_us05_close_on_a_dead_server_ends_at_its_deadline_and_says_what_is_lost(place):
    """Nobody answers: close returns in time, and the ledger has every point."""
    transport = faulty_transport(place.data_dir, paths=None)
    run = place.init(transport=transport)
    transport.is_refusing = True
    run.log("x", list(range(1000)))
    start = time.monotonic()
    with pytest.warns(metrana.MetranaWarning):
        info = run.close(close_timeout=1)
    assert time.monotonic() - start < 3
    assert info.statistics.lost == {"closed": 1000}


# --- US-10 -------------------------------------------------------------------------------------
def test_us10_thirty_two_processes_start_at_once_while_a_reader_polls(place):
    """Every run exists and is complete; no writer sees an error, no read fails."""
    code = """
import sys
with metrana.init(project_name=PROJECT, run_name=f"r{sys.argv[1]}", quiet=True):
    for i in range(50):
        metrana.log("x", i)
"""
    head = f"import metrana_sync_shim as metrana\nPROJECT = {place.project!r}\n"
    variables = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    variables |= {"METRANA_DATA_DIR": place.data_dir, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", head + code, str(n)],
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for n in range(32)
    ]
    reads = 0
    with place.reader() as reader:
        while any(process.poll() is None for process in processes):
            reader.runs()
            reads += 1
            threading.Event().wait(0.05)
        assert all(process.returncode == 0 for process in processes), [
            process.stderr.read() for process in processes if process.returncode
        ]
        for process in processes:
            process.stderr.close()
        runs = reader.runs()
        assert len(runs) == 32
        assert {run.state for run in runs} == {"finished"}
        assert all(len(reader.series(run.name, "x")) == 50 for run in runs)
    assert reads > 0


# --- US-24 -------------------------------------------------------------------------------------
def test_us24_a_silent_run_is_running_and_an_unheard_one_recovers(own_place, monkeypatch):
    """State follows the heartbeat, not the metrics; with the network it comes back by itself."""
    monkeypatch.setattr(limits, "HEARTBEAT_INTERVAL_S", 0.3)
    transport = faulty_transport(own_place.data_dir, paths=None)
    run = own_place.init(transport=transport)
    run.log("x", 1.0)
    run.flush()
    assert not wait_for(lambda: state_of(own_place) != "running", 4.0)  # no metric for 13 beats
    transport.is_refusing = True
    run.log("x", 2.0)
    # Its process lives, so only the silence of more than two seconds tells.
    assert wait_for(lambda: state_of(own_place) == "crashed", 8.0)
    transport.is_refusing = False
    assert wait_for(lambda: state_of(own_place) == "running", 5.0)
    run.close(close_timeout=20)
    assert state_of(own_place) == "finished"
    assert own_place.points("x") == [(0, 1.0), (1, 2.0)]


def test_us24_a_killed_run_is_crashed_and_can_be_deleted(own_place):
    """SIGKILL: crashed soon, deleted at once, also while somebody reads; nothing of it is left."""
    code = """
run = metrana.init(project_name=PROJECT, run_name="killed", quiet=True)
run.log("x", list(range(100)))
run.flush()
print("up", flush=True)
import time; time.sleep(60)
"""
    process = python(own_place, code)
    assert process.stdout.readline() == "up\n"
    assert state_of(own_place, "killed") == "running"
    process.kill()
    process.communicate()
    assert wait_for(lambda: state_of(own_place, "killed") == "crashed", 8.0)
    with own_place.reader() as reader:
        assert len(reader.series("killed", "x")) == 100
        reader.delete_run("killed")
        assert reader.runs() == []
        with pytest.raises(NotFoundError):
            reader.series("killed", "x")


def test_deletes_go_on_while_many_read(own_place):
    """Readers of a run that is deleted get all of it or a NotFoundError, never a part."""
    with own_place.init() as run:
        run.log("x", list(range(50_000)))
    wrong: list[object] = []
    is_over = threading.Event()

    def read() -> None:
        with own_place.reader() as reader:
            while not is_over.is_set():
                try:
                    length = len(reader.series("run", "x"))
                except NotFoundError:
                    return
                except Exception as error:
                    wrong.append(error)
                    return
                if length != 50_000:
                    wrong.append(length)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.3)
    with own_place.reader() as reader:
        reader.delete_run("run")
        assert reader.runs() == []
    for thread in threads:
        thread.join(20)
    is_over.set()
    assert wrong == []


def test_a_live_writer_outlives_a_rename_and_a_restart_of_the_server(own_server, own_place):
    """After a rename and a new server the same writer goes on in the same run."""
    run = own_place.init()
    run.log("x", 1.0)
    run.flush()
    with own_place.reader() as reader:
        uid = reader.rename_run("run", "renamed").run_uid
    own_server[0].stop()
    own_server[0] = ServerProcess(own_server[0].data_dir, "sqlite", "--writer-live", "2")
    run.log("x", 2.0)
    run.close(close_timeout=20)
    with own_place.reader() as reader:
        assert [(r.name, r.run_uid) for r in reader.runs()] == [("renamed", uid)]
    assert own_place.points("x", "renamed") == [(0, 1.0), (1, 2.0)]


# --- US-75 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_us75_one_name_twice_is_decided_by_the_strategy(own_place, monkeypatch, by):
    """Never: refused, naming the ways on; allow: one run, two writers; by argument or variable."""
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "first-job")
    with own_place.init("a") as run:
        run.log("x", 1.0)
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "second-job")

    def init(strategy, name="a"):
        if by == "argument":
            return own_place.init(name, resume_strategy=strategy)
        monkeypatch.setenv("METRANA_RESUME_STRATEGY", strategy)
        return own_place.init(name)

    refused = pytest.raises(RunAlreadyExistsError, match="first-job.*second-job.*allow.*first-job")
    with refused:
        own_place.init("a")
    with refused:
        init("never")
    for name in ("a", "unknown"):  # there is no third strategy: an error before training starts
        with pytest.raises(InitError, match="must.*never.*allow|never.*allow.*must"):
            init("must", name)
    with init("allow") as run:
        run.log("x", 2.0)
    with own_place.reader() as reader:
        (info,) = reader.runs()
    assert (len(info.writers), info.orchestration_ids) == (2, ("first-job", "second-job"))
    assert own_place.points("x", "a") == [(0, 1.0), (1, 2.0)]
    with init("allow", "new"), own_place.reader() as reader:
        assert {run.name for run in reader.runs()} == {"a", "new"}


# --- US-94 -------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_us94_every_session_of_a_run_is_one_series_after_a_restart(own_server, own_place, number):
    """Two sessions, eight points, before and after the server is restarted or killed."""
    for steps in (range(5), range(5, 8)):
        process = python(
            own_place,
            f"""
with metrana.init(project_name=PROJECT, run_name="run", resume_strategy="allow", quiet=True):
    for step in {steps!r}:
        metrana.log("x", step * 10.0, step=step)
""",
        )
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
    expected = [(step, step * 10.0) for step in range(8)]
    assert own_place.points("x") == expected
    own_server[0].stop(number)
    own_server[0] = ServerProcess(own_server[0].data_dir, "sqlite", "--writer-live", "2")
    assert own_place.points("x") == expected


def test_a_failed_run_keeps_the_type_of_its_exception_and_is_reopened(own_place):
    """Failed with the class name; whoever may join runs it again, and then it may finish."""
    with pytest.raises(ZeroDivisionError), own_place.init():
        raise ZeroDivisionError
    with own_place.reader() as reader:
        info = reader.run("run")
        assert (info.state, info.exception_type) == ("failed", "ZeroDivisionError")
        run = own_place.init(resume_strategy="allow")
        assert reader.run("run").state == "running"
        run.close()
        assert reader.run("run").state == "finished"
