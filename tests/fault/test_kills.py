"""Clients that end without a word, at any time: what flush had promised is there, once."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fault.conftest import Site
from tests.fault.jobs import Job, Plan, job, until
from tests.fault.points import find
from tests.fault.proxy import ChaosProxy

pytestmark = pytest.mark.e2e

FULL = "METRANA_TEST_FAULTS" in os.environ
KILLS = 300 if FULL else 42
AT_ONCE = 6
"""Jobs that share a spool directory and die together."""


def arguments(site: Site, url: str, run_name: str = "run", **more) -> dict:
    """What a job's `init` is given."""
    return {
        "project_name": site.project,
        "run_name": run_name,
        "ingestion_url": url,
        "api_key": site.server.address.token,
        "disk": str(site.spool),
        **more,
    }


def check_all(site: Site, jobs: dict[str, Job]) -> Counter[str]:
    """Deliver the rest; every run has what it was promised, and nothing else."""
    reports = site.replay()
    assert {r.state for r in reports} <= {"delivered"}, [(r.state, r.text) for r in reports]
    outcomes: Counter[str] = Counter(replayed=len(reports))
    with site.reader() as reader:
        there = {info.name for info in reader.runs()}
        for name, one in jobs.items():
            progress = one.progress
            if name not in there:
                assert progress.kept == 0
                outcomes["never seen"] += 1
                continue
            stored = find(reader, name).check_prefix(progress.kept, progress.logged)
            outcomes["whole" if stored == progress.logged else "tail lost"] += 1
            outcomes["kept"] += progress.kept
            outcomes["more than promised"] += stored > progress.kept
    site.check_empty()
    return outcomes


@pytest.mark.fault_row("A1", "G3")
@pytest.mark.slow
@pytest.mark.timeout(60 + 2 * KILLS)
@pytest.mark.parametrize("seed", [None])
def test_killed_at_any_time(site: Site, proxy: ChaosProxy, seed: int | None) -> None:
    """Jobs in and out of outages are killed by the hundred, also while they adopt others' rest."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    jobs: dict[str, Job] = {}
    killed = left_behind = 0
    while killed < KILLS:
        # Every other round starts in an outage; some of them live to see its end.
        proxy.listen() if (killed // AT_ONCE) % 2 else proxy.refuse()
        with ExitStack() as stack:
            started: list[Job] = []
            for _ in range(AT_ONCE):
                name = f"run-{len(jobs)}"
                plan = Plan(
                    arguments(site, proxy.url, name, init_mode="auto"),
                    items=2000,
                    flush_every=rng.choice((0, 3, 20)),
                    segment_bytes=rng.choice((1, 1024, 1 << 20)),
                    pace_s=0.001,
                    is_closing=False,
                )
                jobs[name] = stack.enter_context(job(plan))
                started.append(jobs[name])
            for one in started:
                one.start()
            # The moments of the kills are what is drawn; some fall into the start.
            draws = [(rng.random() < 0.2, rng.uniform(0.0, 0.5)) for _ in started]
            killers = [
                threading.Thread(target=kill_late, args=(one, *draw))
                for one, draw in zip(started, draws, strict=True)
            ]
            healer = threading.Timer(rng.uniform(0.3, 1.2), proxy.listen)
            threads = [healer, *killers] if rng.random() < 0.5 else killers
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for one in started:
                assert one.wait() == -signal.SIGKILL
                killed += 1
        left_behind += len(list(site.spool.rglob("*.seg")))
    proxy.listen()
    outcomes = check_all(site, jobs)
    print(killed, "kills", dict(outcomes), left_behind, "segments left behind")
    assert outcomes["kept"] > 0
    assert left_behind > 0, "nobody died with something on the disk"
    assert outcomes["tail lost"] > 0, "no kill came while something was on its way"


def kill_late(one: Job, is_in_start: bool, seconds: float) -> None:
    if not is_in_start:
        until(lambda: one.progress.logged > 0, "the job logs")
    threading.Event().wait(seconds)
    one.kill()


# --- other sudden ends --------------------------------------------------------------------------
def leave_at_once(run, progress) -> None:
    os._exit(0)


def touch_nothing_at_all(run, progress) -> None:
    """Another extension has a bug, in a thread of its own."""
    thread = threading.Thread(target=ctypes.string_at, args=(0,))
    thread.start()
    thread.join()


def eat_everything(run, progress) -> None:
    """Leak in a memory cgroup of 300 MB, as a training that outgrows its container."""
    group = Path("/sys/fs/cgroup/memory") / f"metrana-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(300 << 20))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(bytearray(b"x") * (8 << 20))


has_memory_groups = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK),
    reason="no memory cgroup (v1) may be made here",
)


@pytest.mark.parametrize("is_out", [False, True])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(leave_at_once, 0, marks=pytest.mark.fault_row("A5")),
        pytest.param(touch_nothing_at_all, -signal.SIGSEGV, marks=pytest.mark.fault_row("A3")),
        pytest.param(
            eat_everything,
            -signal.SIGKILL,
            marks=[pytest.mark.fault_row("A4"), has_memory_groups],
        ),
    ],
)
def test_other_sudden_ends(site: Site, proxy: ChaosProxy, end, code: int, is_out: bool) -> None:
    """os._exit, a segfault, the OOM killer, in and out of an outage: as if killed."""
    if is_out:
        proxy.refuse()
    plan = Plan(arguments(site, proxy.url, init_mode="auto"), items=100, flush_every=10, meddle=end)
    with job(plan) as one:
        one.start()
        assert one.wait() == code
        group = Path("/sys/fs/cgroup/memory") / f"metrana-{one.pid}"
        if group.exists():
            group.rmdir()
        assert (one.progress.kept, one.progress.logged) == (50, 50)
        proxy.listen()
        assert check_all(site, {"run": one})["whole"] == 1


def fork_a_sleeper(run, progress) -> None:
    """A data loader's worker, say: it has copies of everything and outlives its parent."""
    if os.fork() == 0:
        signal.alarm(60)
        threading.Event().wait()


@pytest.mark.fault_row("B5")
def test_a_forked_child_does_not_keep_its_dead_parents_spool(site: Site, proxy: ChaosProxy) -> None:
    """The parent is killed, the child lives: the leftovers are nobody's, and delivered at once."""
    proxy.refuse()
    plan = Plan(
        arguments(site, proxy.url, init_mode="auto"),
        flush_every=15,
        meddle=fork_a_sleeper,
        is_closing=False,
    )
    with job(plan) as one:
        one.start()
        until(lambda: one.progress.kept == 30, "all of it is on the disk")
        children = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()
        assert len(children) == 1
        one.kill()
        assert one.wait() == -signal.SIGKILL
        child = int(children[0])
        try:
            os.kill(child, 0)
            proxy.listen()
            assert check_all(site, {"run": one})["whole"] == 1
        finally:
            os.kill(child, signal.SIGKILL)
