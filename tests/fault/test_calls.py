"""Every file call of the spool fails once, fails for good, or is the last one that is made."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metrana_async.spool import writer as spool_writer
from tests.fault.conftest import Site
from tests.fault.jobs import Plan, harmed_job, needs_strace, until
from tests.fault.points import POINTS, Found, log_item
from tests.fault.proxy import ChaosProxy

pytestmark = [pytest.mark.e2e, needs_strace]

FULL = "METRANA_TEST_FAULTS" in os.environ
"""Whether every fault is tried at every call, and not a share of them."""
ITEMS = 30

WRITING = (
    "mkdir", "openat", "write", "fdatasync", "fsync", "rename", "flock", "fchmod", "statfs",
    "unlink", "close", "newfstatat",
)  # fmt: skip
"""What the spool is made, written, rotated and left by."""


def offline(site: Site, **more) -> Plan:
    """A job that logs offline."""
    arguments = {
        "project_name": site.project,
        "run_name": "run",
        "ingestion_url": site.server.address.url,
        "init_mode": "offline",
        "disk": str(site.spool),
    }
    return Plan(arguments, items=ITEMS, **more)


def sweep(site: Site, tmp_path: Path, fault: str, stride: int) -> Counter[str]:
    """Have the nth call fail, for n = 1, 1 + stride, … until it is never reached."""
    outcomes: Counter[str] = Counter()
    nth = 1
    while True:
        own = Site(site.server, f"{site.project}-{nth}", tmp_path / f"spool-{fault[:40]}-{nth}")
        trace = tmp_path / f"trace-{nth}"
        with harmed_job(offline(own), fault.format(nth), trace) as job:
            code = job.wait()
            is_killed = code == -signal.SIGKILL
            if not job.has_fired():
                assert code == 0
                return outcomes
            outcomes["killed" if is_killed else "went on"] += 1
            check(own, job.progress, code, is_sticky=fault.endswith("+"))
        nth += stride


def check(site: Site, progress, code: int, *, is_sticky: bool) -> None:
    """What was declared durable is delivered, once; the rest is counted."""
    is_killed = code == -signal.SIGKILL
    assert is_killed or code == 0, code
    if not is_killed:
        assert progress.is_balanced
        assert progress.accepted == POINTS * ITEMS
        assert progress.accepted == progress.spooled + progress.lost
        if not is_sticky:
            # The disk works again after one refusal: nothing need be lost.
            assert (progress.lost, progress.kept) == (0, ITEMS)
    reports = site.replay()
    assert {r.state for r in reports} <= {"delivered"}, [(r.text, r.statistics) for r in reports]
    # Killed before anything was written there may be no run at all.
    is_there = progress.kept or any(report.statistics.committed for report in reports)
    found = site.find() if is_there else Found([], [], [], [])
    if is_killed:
        found.check_prefix(progress.kept, progress.logged)
    else:
        found.check_prefix(progress.kept, ITEMS)
        # What a disk refused to sync may be on it all the same; more than promised is no harm.
        assert progress.spooled <= found.points <= progress.accepted
        assert is_sticky or found.points == progress.spooled
    site.check_empty()


@pytest.mark.fault_row("A2", "E20")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("call", WRITING)
def test_killed_at_every_file_call(site: Site, tmp_path: Path, call: str) -> None:
    """Killed in the nth call: what flush had declared durable is delivered, in order, once."""
    outcomes = sweep(site, tmp_path, call + ":signal=KILL:when={}", 1 if FULL else 7)
    print(call, dict(outcomes))
    assert outcomes["killed"] >= 1
    assert outcomes["went on"] == 0


ONCE = [
    *[(call, "EIO", ("E4",)) for call in ("fdatasync", "fsync")],
    *[(call, "EIO", ("E5",)) for call in ("write", "openat", "rename", "close", "fchmod")],
    *[(call, "ENOSPC", ("E1",)) for call in ("write", "openat", "mkdir", "rename", "fdatasync")],
    *[(call, "EDQUOT", ("E3",)) for call in ("write", "openat", "mkdir")],
    *[(call, "EINTR", ()) for call in ("write", "openat", "fdatasync", "flock")],
    *[(call, "EAGAIN", ()) for call in ("write", "flock")],
    *[(call, "EACCES", ()) for call in ("mkdir", "openat")],
    ("statfs", "EIO", ()),
]
"""Call, error, and the rows of the matrix beside the sweep's own."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param(call, error, marks=pytest.mark.fault_row("E20", *rows))
        for call, error, rows in (ONCE if FULL else ONCE[::2])
    ],
)
def test_every_file_call_fails_once(site: Site, tmp_path: Path, call: str, error: str) -> None:
    """The nth call is refused, the next one is not: nothing is lost, nothing is stored twice."""
    outcomes = sweep(site, tmp_path, f"{call}:error={error}:when={{}}", 1 if FULL else 7)
    print(call, error, dict(outcomes))
    assert outcomes["went on"] >= 1
    assert outcomes["killed"] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault_row("E20")
def test_every_write_takes_nothing_once(site: Site, tmp_path: Path) -> None:
    """write(2) answers 0: the segment is left and the frames are written to the next."""
    assert sweep(site, tmp_path, "write:retval=0:when={}", 1 if FULL else 3)["went on"] >= 1


FOR_EVER = [
    pytest.param("write", "ENOSPC", marks=pytest.mark.fault_row("E1")),
    pytest.param("write", "EDQUOT", marks=pytest.mark.fault_row("E3")),
    pytest.param("fdatasync", "EIO", marks=pytest.mark.fault_row("E4")),
    pytest.param("openat", "EIO", marks=pytest.mark.fault_row("E5")),
    pytest.param("mkdir", "ENOSPC", marks=pytest.mark.fault_row("E1")),
]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("nth", [1, 4] if FULL else [4])
@pytest.mark.parametrize(("call", "error"), FOR_EVER)
def test_a_call_that_fails_for_ever_loses_what_is_counted(
    site: Site, tmp_path: Path, call: str, error: str, nth: int
) -> None:
    """From the nth on all are refused: the job ends in time, and the ledger has every point."""
    trace = tmp_path / "trace"
    plan = offline(site, flush_timeout_s=0.5, close_timeout_s=1.0)
    with harmed_job(plan, f"{call}:error={error}:when={nth}+", trace) as job:
        code = job.wait()
        assert job.has_fired()
        check(site, job.progress, code, is_sticky=True)
        assert job.progress.lost > 0


# --- delivering ---------------------------------------------------------------------------------
READING = ("openat", "pread64", "getdents64", "newfstatat", "flock", "unlink", "rmdir")
"""What leftovers are found, read and removed by."""
STRIDES = {"openat": 13, "getdents64": 13, "newfstatat": 50}
"""How many calls of the frequent ones are left out, where not all are tried."""


def replaying(site: Site) -> Plan:
    """A job that delivers what lies there."""
    address = site.server.address
    arguments = {
        "ingestion_url": address.url,
        "api_key": address.token,
        "timeout_secs": 10.0,
    }
    return Plan(arguments, replays=str(site.spool))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        *[pytest.param(c, "signal=KILL", marks=pytest.mark.fault_row("A2", "G3")) for c in READING],
        *[pytest.param(c, "error=EIO", marks=pytest.mark.fault_row("E5", "E20")) for c in READING],
        *[
            pytest.param("openat", f"error={error}", marks=pytest.mark.fault_row("E20"))
            for error in ("EMFILE", "EACCES", "ENOMEM", "EINTR")
        ],
    ],
)
def test_delivering_is_harmed_at_every_file_call(
    site: Site, tmp_path: Path, call: str, fault: str
) -> None:
    """Whatever became of the first delivery, the next one completes it: all is there, once."""
    nth = fired = 0
    while True:
        nth += 1 if FULL or nth == 0 else STRIDES.get(call, 5)
        own = Site(site.server, f"{site.project}-{nth}", tmp_path / f"spool-{nth}")
        run = own.init(init_mode="offline")
        with small_segments():
            for k in range(ITEMS):
                log_item(run, k)
                if k % 10 == 9:
                    run.flush(10)
        assert run.close(10).statistics.spooled == POINTS * ITEMS
        with harmed_job(replaying(own), f"{call}:{fault}:when={nth}", tmp_path / "trace") as job:
            code = job.wait()
            assert code == (-signal.SIGKILL if "KILL" in fault and job.has_fired() else 0)
            has_fired = job.has_fired()
        reports = own.replay(retry_set_aside=True)
        assert {r.state for r in reports} <= {"delivered"}, [
            (r.text, r.statistics) for r in reports
        ]
        own.find().check_whole(ITEMS)
        own.check_empty()
        if not has_fired:
            break
        fired += 1
    print(call, fault, fired)
    assert fired >= 1


@contextmanager
def small_segments() -> Iterator[None]:
    """Segments of this process rotate every few batches."""
    before, spool_writer.SEGMENT_BYTES = spool_writer.SEGMENT_BYTES, 1024
    try:
        yield
    finally:
        spool_writer.SEGMENT_BYTES = before


# --- an outage that ends while the process lives ----------------------------------------
DRAINING = [
    ("pread64", "error=EIO", ("E5",)),
    ("openat", "error=EIO", ("E5",)),
    ("openat", "error=EMFILE", ("A15",)),
    ("unlink", "error=EIO", ("E20",)),
    ("unlink", "signal=KILL", ("A2",)),
    ("pread64", "signal=KILL", ("A2",)),
    ("newfstatat", "error=EIO", ("E20",)),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        pytest.param(call, fault, marks=pytest.mark.fault_row("E20", *rows))
        for call, fault, rows in (DRAINING if FULL else DRAINING[::2])
    ],
)
def test_draining_is_harmed_at_every_file_call(
    site: Site, proxy: ChaosProxy, tmp_path: Path, call: str, fault: str
) -> None:
    """Started without a server, which then comes: what was on the disk arrives once, in order."""
    nth = fired = 0
    while True:
        nth += 1 if FULL or nth == 0 else 8
        own = Site(site.server, f"{site.project}-{nth}", tmp_path / f"spool-{nth}")
        arguments = {
            "project_name": own.project,
            "run_name": "run",
            "ingestion_url": proxy.url,
            "api_key": own.server.address.token,
            "init_mode": "auto",
            "disk": str(own.spool),
        }
        plan = Plan(arguments, items=ITEMS, close_timeout_s=20.0, is_healed_before_close=True)
        proxy.refuse()
        with harmed_job(plan, f"{call}:{fault}:when={nth}", tmp_path / "trace") as job:
            until(lambda: not job.is_alive() or job.progress.logged == ITEMS, "the job has logged")
            proxy.listen()
            job.heal()
            code = job.wait()
            has_fired = job.has_fired()
            progress = job.progress
            assert code == (-signal.SIGKILL if "KILL" in fault and has_fired else 0)
        reports = own.replay(retry_set_aside=True)
        assert {r.state for r in reports} <= {"delivered"}, [
            (r.text, r.statistics) for r in reports
        ]
        if code == 0:
            assert progress.is_balanced
            assert progress.lost == 0, "one refusal is no reason to lose anything"
            own.find().check_whole(ITEMS)
        elif progress.kept or any(report.statistics.committed for report in reports):
            own.find().check_prefix(progress.kept, progress.logged)
        own.check_empty()
        if not has_fired:
            break
        fired += 1
    print(call, fault, fired)
    assert fired >= 1
