"""Client processes that are stopped, starved and cloned; neighbours that want the same spool."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.engine.loop_thread import engine
from metrana_async.errors import MetranaError
from metrana_async.wire.acks import BatchStatus
from tests.fault import proxy as faults
from tests.fault.conftest import Site
from tests.fault.jobs import Plan, job, until
from tests.fault.points import POINTS, find, log_item
from tests.fault.proxy import ChaosProxy
from tests.fault.test_kills import arguments, check_all
from tests.fault.test_network import statuses
from tests.interop.conftest import ROOT

pytestmark = pytest.mark.e2e

FULL = "METRANA_TEST_FAULTS" in os.environ
STOPPED_S = 120.0 if FULL else 2.0
ITEMS = 30


# --- stopped ----------------------------------------------------------------------------------
@pytest.fixture(params=["signal", "freezer"])
def stop_and_go(request: pytest.FixtureRequest):
    """How a process is stopped, and goes on."""
    if request.param == "signal":
        yield lambda pid: os.kill(pid, signal.SIGSTOP), lambda pid: os.kill(pid, signal.SIGCONT)
        return
    if not os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK):
        pytest.skip("no freezer cgroup (v1) may be used here")
    group = Path("/sys/fs/cgroup/freezer") / f"metrana-{os.getpid()}"
    group.mkdir()

    def freeze(pid: int) -> None:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        until(lambda: "FROZEN" in (group / "freezer.state").read_text(), "it is frozen")

    yield freeze, lambda pid: (group / "freezer.state").write_text("THAWED")
    (group / "freezer.state").write_text("THAWED")
    until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
    group.rmdir()


@pytest.mark.fault_row("A13", "A14")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_client_that_is_stopped_in_a_request_goes_on(
    site: Site, proxy: ChaosProxy, stop_and_go
) -> None:
    """The server has the request, the client sleeps through the answer: stored once, all of it."""
    stop, go_on = stop_and_go
    reached = threading.Event()

    async def slow_answer(exchange: faults.Exchange) -> None:
        answer = await exchange.ask()
        reached.set()
        await exchange.say(answer)

    proxy.inject(slow_answer)
    plan = Plan(arguments(site, proxy.url), flush_every=0, pace_s=0.02, close_timeout_s=20.0)
    with job(plan) as one:
        one.start()
        assert reached.wait(20)
        stop(one.pid)
        stat = Path(f"/proc/{one.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TD", "it stands still")
        threading.Event().wait(STOPPED_S)  # how long it is stopped is what the row is about
        go_on(one.pid)
        assert one.wait(120) == 0
        assert one.progress.committed == POINTS * ITEMS
    site.find().check_whole(ITEMS)
    site.check_empty()
    with site.reader() as reader:
        assert reader.run("run").state == "finished"


# --- starved ----------------------------------------------------------------------------------
def use_every_descriptor(one: metrana.Run, progress) -> None:
    """Take all there are, log and flush, give them back."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        progress.put(noted=len(taken))
    try:
        one.flush(1.0)
    except metrana.WaitTimeoutError:
        progress.put(noted=1000 + len(taken))
    for handle in taken:
        os.close(handle)


@pytest.mark.fault_row("A15")
@pytest.mark.parametrize("is_out", [False, True])
def test_a_process_without_descriptors_recovers_with_them(
    site: Site, proxy: ChaosProxy, is_out: bool
) -> None:
    """EMFILE everywhere: no exception but a flush's time-out, and nothing is lost."""
    if is_out:
        proxy.refuse()
    plan = Plan(
        arguments(site, proxy.url, init_mode="auto"),
        meddle=use_every_descriptor,
        flush_every=15 if is_out else 0,
        flush_timeout_s=10.0,
        segment_bytes=1,
        close_timeout_s=5.0,
    )
    with job(plan) as one:
        one.start()
        assert one.wait() == 0
        assert one.progress.noted > 10
        assert (one.progress.lost, one.progress.accepted) == (0, POINTS * ITEMS)
        proxy.listen()
        site.replay()
        site.find().check_whole(ITEMS)


def run_out_of_memory(one: metrana.Run, progress) -> None:
    """The nth allocation of a call fails, for n = 0, 1, …; each call is made until it succeeds.

    The engine stands still meanwhile: it is the caller's allocations that fail.
    """
    import _testcapi

    one.flush(20)
    stands, goes_on = threading.Lock(), threading.Lock()

    def stand_still() -> None:
        stands.release()
        goes_on.acquire()

    stands.acquire()
    goes_on.acquire()
    engine().call_soon(stand_still)
    assert stands.acquire(timeout=20)
    time.sleep(0.01)  # the engine's last allocations: it waits in C from here on, and tells nobody
    failures = 0
    for k in range(1000, 1200):
        for nth in (k % 97, 0):
            _testcapi.set_nomemory(nth, nth + 1)
            try:
                one.log("starved", float(k), step=k)
            except MemoryError:
                failures += 1
            finally:
                _testcapi.remove_mem_hooks()
    goes_on.release()
    progress.put(noted=failures)


@pytest.mark.fault_row("A17")
def test_memory_errors_in_a_call_leave_everything_in_order(site: Site) -> None:
    """A call that raises MemoryError has logged its point or not; the order stays."""
    pytest.importorskip("_testcapi")
    plan = Plan(
        arguments(site, site.server.address.url), meddle=run_out_of_memory, close_timeout_s=20.0
    )
    with job(plan) as one:
        one.start()
        assert one.wait() == 0
        progress = one.progress
        assert progress.noted > 0, "no allocation failed"
        assert progress.is_balanced
        assert progress.lost == 0
        assert progress.committed == progress.accepted
    site.find().check_whole(ITEMS)
    with site.reader() as reader:
        starved = reader.series("run", "starved")
    assert starved.step.tolist() == sorted(set(starved.step.tolist()))
    assert starved.step.tolist() == starved.value.astype(int).tolist()


def allow_no_thread(run, progress) -> None:
    """From here on no thread starts in this process: its pids cgroup is full."""
    group = Path("/sys/fs/cgroup/pids") / f"metrana-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (group / "pids.max").write_text((group / "pids.current").read_text())
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        progress.put(noted=1)


@pytest.mark.fault_row("A16")
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/fs/cgroup/pids/cgroup.procs", os.W_OK),
    reason="no pids cgroup (v1) may be made here",
)
@pytest.mark.parametrize("is_out", [False, True])
def test_a_process_that_may_start_no_thread(site: Site, proxy: ChaosProxy, is_out: bool) -> None:
    """The engine has all the threads it needs: sending, spooling and closing go on."""
    if is_out:
        proxy.refuse()
    plan = Plan(
        arguments(site, proxy.url, init_mode="auto"), meddle=allow_no_thread, flush_every=15
    )
    with job(plan) as one:
        one.start()
        assert one.wait() == 0
        (Path("/sys/fs/cgroup/pids") / f"metrana-{one.pid}").rmdir()
        assert (one.progress.noted, one.progress.lost, one.progress.kept) == (1, 0, ITEMS)
        proxy.listen()
        assert check_all(site, {"run": one})["whole"] == 1


# --- neighbours -------------------------------------------------------------------------------
def leave(site: Site, run_name: str = "run") -> None:
    """Leftovers of an offline run."""
    run = site.init(run_name=run_name, init_mode="offline")
    for k in range(ITEMS):
        log_item(run, k)
    run.close(10)


def replaying(site: Site, spool: Path, url: str | None = None) -> Plan:
    """A job that delivers what lies in `spool`."""
    address = site.server.address
    given = {"ingestion_url": url or address.url, "api_key": address.token, "timeout_secs": 20.0}
    return Plan(given, replays=str(spool))


@pytest.mark.fault_row("G2")
def test_two_who_want_the_same_leftovers(site: Site, proxy: ChaosProxy) -> None:
    """While one delivers the other is told so; it is there once."""
    leave(site)
    clogged = faults.Clogged()
    proxy.inject(clogged)
    with job(replaying(site, site.spool, proxy.url)) as first:
        first.start()
        until(lambda: bool(clogged.waiting), "the first one is at it")
        (report,) = site.replay()
        assert (report.state, "alive" in report.text) == ("busy", True), report
        proxy.heal()
        proxy._loop.call_soon_threadsafe(clogged.waiting[0].set)
        assert first.wait() == 0
    site.find().check_whole(ITEMS)
    site.check_empty()


@pytest.mark.fault_row("G2", "G10")
def test_the_same_leftovers_delivered_twice_at_once(
    site: Site, proxy: ChaosProxy, tmp_path: Path
) -> None:
    """A copied spool (a cloned disk): both are delivered side by side, and it is there once."""
    leave(site)
    copy = tmp_path / "copy"
    shutil.copytree(site.spool, copy)
    with (
        job(replaying(site, site.spool, proxy.url)) as first,
        job(replaying(site, copy, proxy.url)) as second,
    ):
        first.start(), second.start()
        assert (first.wait(), second.wait()) == (0, 0)
    site.find().check_whole(ITEMS)
    site.check_empty()
    assert not list(copy.rglob("*.seg"))


@pytest.mark.fault_row("G3")
def test_a_deliverer_that_is_killed_halfway_is_followed_by_the_next(
    site: Site, proxy: ChaosProxy
) -> None:
    """The server has it, the deliverer dies before the answer: the next one finishes."""
    leave(site)
    proxy.inject(faults.deaf)
    with job(replaying(site, site.spool, proxy.url)) as first:
        first.start()
        until(lambda: len(proxy.answers) == 1, "the server has it")
        first.kill()
        assert first.wait() == -signal.SIGKILL
    proxy.heal()
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(ITEMS)
    site.check_empty()


@pytest.mark.fault_row("G4")
def test_an_owner_whose_lock_was_taken_away(site: Site, proxy: ChaosProxy) -> None:
    """LOCK is deleted under a living writer: another delivers, both send, it is there once."""
    run = site.init(proxy.url)
    for k in range(ITEMS):
        log_item(run, k)
    run.flush(20)
    proxy.refuse()
    for k in range(ITEMS, 2 * ITEMS):
        log_item(run, k)
    assert run.flush(20).spooled == POINTS * ITEMS
    (site.directory() / "LOCK").unlink()
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(2 * ITEMS)
    for k in range(2 * ITEMS, 3 * ITEMS):
        log_item(run, k)
    proxy.listen()
    until(lambda: run.flush(20).spooled == 0, "the server answers")
    info = run.close(30)
    assert (info.is_complete, info.statistics.losses) == (True, {}), info
    site.find().check_whole(3 * ITEMS)
    assert BatchStatus.DUPLICATE in statuses(proxy)


@pytest.mark.fault_row("G6")
def test_a_writer_that_comes_back_beside_its_successor(site: Site, proxy: ChaosProxy) -> None:
    """Stopped, replaced, continued: what both logged is stored, each under its own name."""
    plan = Plan(arguments(site, proxy.url), items=200, flush_every=0, pace_s=0.01)
    with job(plan) as zombie:
        zombie.start()
        until(lambda: zombie.progress.logged >= 50, "it logs")
        zombie.kill(signal.SIGSTOP)
        successor = site.init(resume_strategy="allow")
        for step in range(ITEMS):
            successor.log_distributed("late", float(step), step=step)
        successor.flush(20)
        zombie.kill(signal.SIGCONT)
        assert zombie.wait(60) == 0
        assert zombie.progress.lost == 0
        assert zombie.progress.committed == zombie.progress.accepted
    assert successor.close(20).is_complete
    with site.reader() as reader:
        late = reader.merged("run", "late")
        assert late.step.tolist() == list(range(ITEMS))
        assert set(late.count.tolist()) == {1}
        find(reader).check_whole(200)
        assert len(reader.run("run").writers) == 2


@pytest.mark.fault_row("G12")
def test_leftovers_of_a_deleted_run_do_not_bring_it_back(site: Site, proxy: ChaosProxy) -> None:
    """Deleted while points were on a disk: set aside with the reason, and still deleted."""
    run = site.init(proxy.url)
    for k in range(ITEMS):
        log_item(run, k)
    run.flush(20)
    proxy.refuse()
    log_item(run, ITEMS)
    assert run.close(4).statistics.spooled == POINTS
    with site.reader() as reader:
        reader.delete_run("run")
    (report,) = site.replay()
    assert (report.state, "deleted" in report.text) == ("set_aside", True), report
    assert list(site.directory().glob("*.seg")), "what cannot be delivered was deleted"
    (again,) = site.replay()
    assert again.state == "set_aside"
    with site.reader() as reader, pytest.raises(MetranaError):
        reader.series("run", "auto")


@pytest.mark.fault_row("G1")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_many_processes_share_one_spool(site: Site, proxy: ChaosProxy) -> None:
    """Jobs by the dozen, one directory, an outage in the middle: everybody's points, once."""
    count = 64 if FULL else 12
    proxy.refuse()
    plans = [
        Plan(
            arguments(site, proxy.url, f"run-{n}", init_mode="auto"),
            flush_timeout_s=20.0,
            close_timeout_s=20.0,
        )
        for n in range(count)
    ]
    jobs = {}
    with ExitStack() as stack:
        for n, plan in enumerate(plans):
            jobs[f"run-{n}"] = stack.enter_context(job(plan))
        for one in jobs.values():
            one.start()
        until(lambda: any(one.progress.kept for one in jobs.values()), "something is on the disk")
        proxy.listen()
        for one in jobs.values():
            assert one.wait(120) == 0
            assert one.progress.lost == 0
        outcomes = check_all(site, jobs)
        assert outcomes["whole"] == count


# --- clocks -----------------------------------------------------------------------------------
TEN_DAYS = 10 * 86400


@pytest.mark.parametrize(
    ("fake", "zone"),
    [
        pytest.param(str(TEN_DAYS), "UTC", marks=pytest.mark.fault_row("F1")),
        pytest.param(str(-TEN_DAYS), "UTC", marks=pytest.mark.fault_row("F1")),
        pytest.param("-1790000000", "UTC", marks=pytest.mark.fault_row("F1")),
        pytest.param("2500000000", "UTC", marks=pytest.mark.fault_row("F1")),
        pytest.param("~3600", "UTC", marks=pytest.mark.fault_row("F2")),
        pytest.param("x10", "UTC", marks=pytest.mark.fault_row("F3")),
        pytest.param("x0.1", "UTC", marks=pytest.mark.fault_row("F3")),
        pytest.param("0", "America/St_Johns", marks=pytest.mark.fault_row("F4")),
    ],
)
def test_wall_clocks_that_are_wrong_change_no_order(
    site: Site, proxy: ChaosProxy, clock: Path, fake: str, zone: str
) -> None:
    """Days off, to and fro, too fast, too slow: an outage, a spool, a replay, all of it once."""
    code = f"""
import sys, time, metrana_sync_shim as metrana
from tests.fault.points import log_item
print(time.time(), flush=True)
run = metrana.init(quiet=True, **{arguments(site, proxy.url)!r})
for k in range({ITEMS}):
    log_item(run, k)
run.flush(20)
print("stored", flush=True)
sys.stdin.readline()
for k in range({ITEMS}, {2 * ITEMS}):
    log_item(run, k)
statistics = run.flush(20)
print(statistics.spooled, flush=True)
run.close(5)
print(time.time(), flush=True)
"""
    variables = {**os.environ, "LD_PRELOAD": str(clock), "FAKE": fake, "TZ": zone}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
        cwd=ROOT,
    ) as process:
        seen = float(process.stdout.readline())
        if fake.lstrip("-").isdigit():
            assert abs(seen - time.time() - int(fake)) < 60, "the clock was not shifted"
        assert process.stdout.readline() == "stored\n"
        proxy.refuse()
        process.stdin.write("\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == POINTS * ITEMS
        last = float(process.stdout.readline())
        assert process.wait(30) == 0
    if fake == "x10":
        assert last - seen > 20, "the clock did not run fast"
    if fake == "x0.1":
        assert last - seen < 3, "the clock did not run slow"
    proxy.listen()
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(2 * ITEMS)
    site.check_empty()
