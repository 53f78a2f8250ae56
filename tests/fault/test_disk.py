"""The client's disk fills up, refuses, hangs, vanishes or loses power: every point is counted."""

from __future__ import annotations

import functools
import os
import random
import resource
import shutil
import signal
import threading
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async import DiskConfig
from metrana_async.delivery import spooling
from metrana_async.errors import SpoolWarning, WaitTimeoutError
from tests.crash.disks import LoopDisk, fill, run
from tests.crash.servers import needs_root
from tests.fault import proxy as faults
from tests.fault.conftest import Site
from tests.fault.jobs import Plan, harmed_job, job, needs_strace, until
from tests.fault.points import POINTS, log_item
from tests.fault.proxy import ChaosProxy
from tests.fault.test_kills import arguments, check_all

pytestmark = pytest.mark.e2e

FULL = "METRANA_TEST_FAULTS" in os.environ
ITEMS = 40
CUTS = 60 if FULL else 4


@pytest.fixture
def prompt_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refused is tried again after 0.2 s instead of 5."""
    monkeypatch.setattr(spooling, "RETRY_AFTER_S", 0.2)


def log(one: metrana.Run, start: int, count: int = ITEMS) -> int:
    for k in range(start, start + count):
        log_item(one, k)
    return start + count


def warned(recwarn: pytest.WarningsRecorder) -> list[str]:
    """What was said of the spool."""
    return [str(w.message) for w in recwarn if issubclass(w.category, SpoolWarning)]


def ends_whole(site: Site, one: metrana.Run, items: int) -> None:
    """The server is back: all of it is stored, once."""
    until(lambda: one.flush(20).spooled == 0, "the server has everything")
    info = one.close(30)
    assert (info.is_complete, info.statistics.losses) == (True, {}), info
    site.find().check_whole(items)


@pytest.fixture
def outage(site: Site, proxy: ChaosProxy) -> metrana.Run:
    """A run whose server has just gone."""
    one = site.init(proxy.url)
    log(one, 0)
    one.flush(20)
    proxy.refuse()
    return one


# --- full -------------------------------------------------------------------------------------
@needs_root
@pytest.mark.parametrize(
    "options",
    [
        pytest.param("size=1m", marks=pytest.mark.fault_row("E1")),
        pytest.param("size=4m,nr_inodes=12", marks=pytest.mark.fault_row("E2")),
    ],
)
def test_a_full_disk_is_said_once_and_recovers_with_space(
    site: Site, proxy: ChaosProxy, recwarn, prompt_retries: None, options: str
) -> None:
    """Without bytes or inodes nothing is promised; memory keeps it; with space it is kept."""
    site.spool.mkdir(mode=0o700)
    run("mount", "-t", "tmpfs", "-o", f"{options},mode=700", "tmpfs", str(site.spool))
    try:
        one = site.init(proxy.url)
        items = log(one, 0)
        one.flush(20)
        proxy.refuse()
        fillers = [fill(site.spool)] if "inodes" not in options else use_inodes(site.spool)
        items = log(one, items)
        with pytest.raises(WaitTimeoutError):
            one.flush(5)
        assert len(warned(recwarn)) == 1, warned(recwarn)
        assert "No space left" in warned(recwarn)[0] or "bytes are free" in warned(recwarn)[0]
        statistics = one.get_metrics()
        assert (statistics.losses, statistics.in_flight) == ({}, POINTS * ITEMS)
        for filler in fillers:
            filler.unlink()
        assert one.flush(20).spooled == POINTS * ITEMS
        items = log(one, items)
        proxy.listen()
        ends_whole(site, one, items)
    finally:
        run("umount", "-l", str(site.spool))


def use_inodes(folder: Path) -> list[Path]:
    made = []
    while True:
        path = folder / f"filler-{len(made)}"
        try:
            path.touch()
        except OSError:
            return made
        made.append(path)


def limit_file_size(nbytes: int, probe: Path, one: metrana.Run, progress) -> None:
    """No file of this process may grow beyond."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    try:
        probe.write_bytes(bytes(nbytes + 1))
    except OSError:
        progress.put(noted=1)


@pytest.mark.fault_row("E3")
@pytest.mark.parametrize("nbytes", [10, 5000])
def test_files_that_may_not_grow(site: Site, tmp_path: Path, nbytes: int) -> None:
    """EFBIG behind a short write: what still fits is kept, the rest is counted."""
    plan = Plan(
        arguments(site, "http://127.0.0.1:9", init_mode="offline"),
        meddle=functools.partial(limit_file_size, nbytes, tmp_path / "probe"),
        flush_every=15,
        flush_timeout_s=1.0,
        segment_bytes=1 << 20,
    )
    with job(plan) as one:
        one.start()
        assert one.wait() == 0
        progress = one.progress
    assert progress.noted == 1, "the limit did not bite"
    assert progress.is_balanced
    assert progress.spooled + progress.lost == progress.accepted == POINTS * 30
    assert progress.kept >= 15
    assert (progress.lost > 0) == (nbytes == 10)
    reports = site.replay()
    assert {r.state for r in reports} == {"delivered"}, [(r.text, r.statistics) for r in reports]
    found = site.find()
    found.check_prefix(progress.kept, 30)
    assert found.points >= progress.spooled


@pytest.mark.fault_row("E17")
def test_the_quota_is_kept_and_what_it_costs_is_counted_exactly(
    site: Site, proxy: ChaosProxy, recwarn, prompt_retries: None
) -> None:
    """Beyond it memory keeps the rest; closed like that, the ledger has each point."""
    quota = 30_000
    one = site.init(proxy.url, disk=DiskConfig(str(site.spool), quota_bytes=quota))
    items = log(one, 0)
    one.flush(20)
    proxy.refuse()
    kept = items
    for _ in range(200):
        items = log(one, items)
        try:
            one.flush(1.0)
        except WaitTimeoutError:
            break
        kept = items
    else:
        pytest.fail("the quota was never reached")
    assert any("quota" in text for text in warned(recwarn)), warned(recwarn)
    segments = sum(path.stat().st_size for path in site.directory().glob("*.seg"))
    assert 0 < segments <= quota
    info = one.close(2)
    statistics = info.statistics
    assert statistics.is_balanced
    assert statistics.accepted == POINTS * items
    assert statistics.committed == POINTS * ITEMS
    assert statistics.lost == {"closed": statistics.accepted - POINTS * ITEMS - statistics.spooled}
    (report,) = site.replay()
    assert report.state == "delivered", report
    found = site.find()
    found.check_prefix(kept, items)
    assert found.points == statistics.committed + statistics.spooled


# --- slow -------------------------------------------------------------------------------------
@needs_strace
@pytest.mark.fault_row("E6")
def test_a_sync_that_takes_long_holds_up_nobody(
    site: Site, proxy: ChaosProxy, tmp_path: Path
) -> None:
    """Every fdatasync takes 3 s, answers 0.3 s: everything is sent past the disk meanwhile."""
    late = faults.Late(0.3)
    proxy.inject(late)
    items = 150
    plan = Plan(arguments(site, proxy.url), items, flush_every=0, pace_s=0.02, close_timeout_s=20.0)
    fault = "fdatasync:delay_enter=3000000"
    with harmed_job(plan, fault, tmp_path / "trace") as one:
        assert one.wait() == 0
        assert one.has_fired()
        assert one.progress.committed == one.progress.accepted == POINTS * items
    site.find().check_whole(items)


@needs_strace
@pytest.mark.fault_row("E7")
def test_a_frozen_disk_does_not_keep_a_process(site: Site, tmp_path: Path) -> None:
    """Writes never come back: flush says no, close ends, the ledger has every point as lost."""
    plan = Plan(
        arguments(site, "http://127.0.0.1:9", init_mode="offline"),
        flush_timeout_s=0.5,
        close_timeout_s=1.0,
    )
    with harmed_job(plan, "write:delay_enter=60000000:when=3+", tmp_path / "trace") as one:
        until(lambda: one.progress.accepted > 0, "close has ended")
        progress = one.progress
        assert progress.is_balanced
        assert progress.spooled + progress.lost == progress.accepted == POINTS * 30
        assert progress.lost > 0
        one.tracer.kill()
        one.tracer.wait()
        one.tracer = None
        assert one.wait() == 0


# --- gone -------------------------------------------------------------------------------------
@pytest.mark.fault_row("E15")
@pytest.mark.parametrize("level", ["writer", "root"])
def test_a_removed_directory_is_made_again(
    site: Site, proxy: ChaosProxy, prompt_retries: None, outage: metrana.Run, level: str
) -> None:
    """Somebody cleans up under a living writer: nothing is lost, and what comes is kept again."""
    items = log(outage, ITEMS)
    assert outage.flush(20).spooled == POINTS * ITEMS
    shutil.rmtree(site.directory() if level == "writer" else site.spool)
    items = log(outage, items)
    outage.flush(20)
    assert list(site.directory().glob("*.seg")), "nothing was kept anew"
    proxy.listen()
    ends_whole(site, outage, items)


@needs_root
@pytest.mark.fault_row("E15")
def test_a_disk_that_turns_read_only_is_memory_for_a_while(
    site: Site, proxy: ChaosProxy, recwarn, prompt_retries: None
) -> None:
    """EROFS: said once, kept in memory; writable again, it is kept on the disk."""
    site.spool.mkdir(mode=0o700)
    run("mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(site.spool))
    try:
        one = site.init(proxy.url)
        items = log(one, 0)
        one.flush(20)
        proxy.refuse()
        run("mount", "-o", "remount,ro", str(site.spool))
        items = log(one, items)
        with pytest.raises(WaitTimeoutError):
            one.flush(5)
        assert ["Read-only" in text for text in warned(recwarn)] == [True]
        run("mount", "-o", "remount,rw", str(site.spool))
        assert one.flush(20).spooled == POINTS * ITEMS
        proxy.listen()
        ends_whole(site, one, items)
    finally:
        run("umount", "-l", str(site.spool))


# --- without power ----------------------------------------------------------------------------
@needs_root
@pytest.mark.fault_row("E8")
@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * CUTS)
@pytest.mark.parametrize("seed", [None])
def test_what_was_synced_survives_power_cuts(site: Site, tmp_path: Path, seed: int | None) -> None:
    """The disk is cut off under jobs that log offline: what was promised is there after it."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    disk = LoopDisk(tmp_path)
    outcomes = []
    try:
        for cut in range(CUTS):
            own = Site(site.server, f"{site.project}-{cut}", disk.at / f"spool-{cut}")
            plan = Plan(
                arguments(own, "http://127.0.0.1:9", init_mode="offline"),
                items=5000,
                flush_every=rng.choice((1, 5, 50)),
                segment_bytes=rng.choice((1, 4096, 1 << 20)),
                flush_timeout_s=0.5,
                pace_s=0.001,
                is_closing=False,
            )
            with job(plan) as one:
                one.start()
                until(lambda: one.progress.kept >= 1, "something is promised")
                threading.Event().wait(rng.uniform(0.0, 0.4))  # the moment of the cut is drawn
                # A sync that meets the cut may call itself done; nobody sees that without power.
                promised = one.progress.kept
                disk.cut_power()
                with pytest.raises(OSError):
                    (disk.at / "marker").write_text("the disk is gone")
                one.kill()
                assert one.wait() == -signal.SIGKILL
                one.progress.put(kept=promised)
                disk.unmount()
                disk.mount()
                outcomes.append(check_all(own, {"run": one}))
    finally:
        disk.clear()
    print(sum(outcomes, start=outcomes[0].__class__()))
