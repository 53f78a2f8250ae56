"""User reports (`US-nn`) about data that must not be lost: outages, disks, offline runs, sync.

Where it makes sense a report is told three times: with the server there, after a retry (the first
requests fail), and offline with a sync at the end.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metrana_async.spool import layout
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


# --- US-23 -------------------------------------------------------------------------------------
def test_us23_a_flaky_server_neither_raises_nor_stalls(site):
    """429, 500, cut answers, hang-ups while the loop logs: no exception; all stored once."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    flaky = spools.Refusing(seed, share=0.7)
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
    spools.arrive(site)
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


class Narrow:
    """A proxy that takes no body beyond its limit, and says so in words of its own."""

    def __init__(self, limit_bytes):
        self.limit_bytes = limit_bytes
        self.count = 0

    async def __call__(self, exchange):
        if len(await exchange.request()) <= self.limit_bytes:
            await exchange.say(await exchange.ask())
            return
        self.count += 1
        page = b"<html><h1>413 Request Entity Too Large</h1></html>"
        head = b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Type: text/html\r\n"
        await exchange.say(head + b"Content-Length: %d\r\n\r\n" % len(page) + page)


def test_us47_a_proxy_with_a_limit_gets_requests_within_it(site):
    """What an outage has piled up is sent in smaller requests: nothing is refused, or waits."""
    narrow = Narrow(1 << 20)
    program = site.begin("""
        run = metrana.init(run_name="run")
        run.log("x", -1.0); run.flush(20)
        say("up"); wait()
        for k in range(40):
            run.log("x", [float(i) for i in range(10_000 * k, 10_000 * (k + 1))])
            time.sleep(0.03)
        assert run.flush(30).spooled
        say("spooled"); wait()
        info = run.close(60)
        say(info.is_complete, info.statistics.committed, dict(info.statistics.rejected))
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "spooled\n"
    site.proxy.inject(narrow)
    site.proxy.listen()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "True 400001 {}\n"
    status, errors = site.end(program)
    assert status == 0, errors
    assert narrow.count > 0
    assert site.values("x") == [-1.0, *(float(i) for i in range(400_000))]


# --- US-48 -------------------------------------------------------------------------------------
def test_us48_a_lost_answer_stores_nothing_twice(site):
    """One answer in three is lost after the server stored: 5,000 points, 500 of them NaN."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    lossy = spools.Refusing(seed, share=0.34, kinds=("cut",))
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
    spools.arrive(site)
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
    spools.arrive(site)
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
        spools.arrive(site)
    assert site.points("x") == [(0, 0.0), (1, 1.0)]
