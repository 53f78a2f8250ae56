"""Other file systems under the spool, an interface that goes away, hosts whose clocks disagree."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from tests.crash.disks import run
from tests.crash.servers import Server, needs_root
from tests.fault.conftest import Site
from tests.fault.jobs import Plan, job, until
from tests.fault.points import POINTS, find, log_item
from tests.fault.proxy import ChaosProxy
from tests.fault.test_kills import arguments, check_all
from tests.interop.conftest import ROOT

pytestmark = pytest.mark.e2e

ITEMS = 30


# --- file systems -----------------------------------------------------------------------------
@pytest.fixture(params=["tmpfs", "ext4", "xfs", "btrfs", "overlay"])
def other_file_system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of this kind, or the test is skipped."""
    at = tmp_path / "at"
    at.mkdir()
    try:
        if request.param == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(at))
        elif request.param == "overlay":
            upper = tmp_path / "upper"
            upper.mkdir()
            run("mount", "-t", "tmpfs", "tmpfs", str(upper))
            for name in ("lower", "data", "work"):
                (upper / name).mkdir()
            options = f"lowerdir={upper}/lower,upperdir={upper}/data,workdir={upper}/work"
            run("mount", "-t", "overlay", "-o", options, "overlay", str(at))
        else:
            make = shutil.which(f"mkfs.{request.param}")
            if make is None:
                pytest.skip(f"mkfs.{request.param} is not installed")
            image = tmp_path / "image"
            with image.open("wb") as file:
                file.truncate(400 << 20)
            run(make, "-q", str(image))
            run("mount", "-o", "loop", str(image), str(at))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no {request.param} may be mounted here: {error.stderr!r}")
    yield at
    for mounted in (at, tmp_path / "upper"):
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", "-l", str(mounted))


@needs_root
@pytest.mark.fault_row("E21")
def test_a_spool_on_other_file_systems(
    site: Site, proxy: ChaosProxy, other_file_system: Path
) -> None:
    """Killed in an outage there, adopted from there: what was promised, once."""
    own = Site(site.server, site.project, other_file_system / "spool")
    proxy.refuse()
    plan = Plan(
        arguments(own, proxy.url, init_mode="auto"), ITEMS, is_closing=False, segment_bytes=1024
    )
    with job(plan) as one:
        one.start()
        until(lambda: one.progress.kept == ITEMS, "all of it is on the disk")
        assert one.progress.kept == ITEMS
        (report,) = own.replay()
        assert report.state == "busy", "the lock does not hold"
        one.kill()
        assert one.wait() == -signal.SIGKILL
        proxy.listen()
        assert check_all(own, {"run": one})["whole"] == 1


# --- the interface ----------------------------------------------------------------------------
@pytest.fixture
def namespace() -> Iterator[str]:
    """A network of its own with nothing but a loopback interface, or the test is skipped."""
    name = f"metrana-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "ip", "link", "set", "lo", "up")
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no network namespace may be made here: {error}")
    yield name
    run("ip", "netns", "delete", name)


CLIENT = """
import json, sys
import metrana_sync_shim as metrana
from tests.fault.points import log_item
given = json.loads(sys.argv[1])
run = metrana.init(quiet=True, **given)
k = 0
for line in sys.stdin:
    for _ in range(30):
        log_item(run, k)
        k += 1
    statistics = run.flush(6)
    print(statistics.committed, statistics.spooled, sum(statistics.losses.values()), flush=True)
info = run.close(20)
print(info.statistics.committed, info.statistics.spooled, sum(info.statistics.losses.values()))
"""


@needs_root
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.fault_row("C18")
def test_an_interface_that_goes_down_and_up_with_another_address(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down: what is logged is on the disk. Up again, the address back: all of it is stored once."""
    server = Server(tmp_path / "data")
    inside = ("ip", "netns", "exec", namespace)
    try:
        assert server.start(*inside), server.said
        card = server.home.card
        given = {
            "project_name": "proj",
            "workspace_name": "ws",
            "run_name": "run",
            "ingestion_url": card["url"],
            "api_key": card["token"],
            "disk": str(tmp_path / "spool"),
        }
        words = [*inside, sys.executable, "-c", CLIENT, json.dumps(given)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as client:

            def ask() -> list[int]:
                client.stdin.write("\n")
                client.stdin.flush()
                return [int(word) for word in client.stdout.readline().split()]

            assert ask() == [30 * POINTS, 0, 0]
            run(*inside, "ip", "link", "set", "lo", "down")
            assert ask() == [30 * POINTS, 30 * POINTS, 0]
            run(*inside, "ip", "address", "add", "127.0.0.9/8", "dev", "lo")
            run(*inside, "ip", "link", "set", "lo", "up")
            client.stdin.close()
            last = [int(word) for word in client.stdout.readline().split()]
            assert last == [60 * POINTS, 0, 0]
            assert client.wait(30) == 0
        with server.reader() as reader:
            find(reader).check_whole(60)
        assert server.stop() == 0
    finally:
        server.clear()


# --- hosts that disagree ----------------------------------------------------------------------
@pytest.mark.fault_row("F6")
def test_two_hosts_an_hour_apart_write_one_run(site: Site, clock: Path) -> None:
    """Merged steps of both are there once each, in order, whatever their clocks say."""
    code = """
import json, sys
import metrana_sync_shim as metrana
run = metrana.init(quiet=True, **json.loads(sys.argv[1]))
for step in range(int(sys.argv[2]), 60, 2):
    run.log_distributed("shared", float(step), step=step)
print(int(run.close(20).is_complete))
"""
    given = arguments(site, site.server.address.url) | {"resume_strategy": "allow"}
    for first, fake in enumerate(("3600", "-3600")):
        variables = {**os.environ, "LD_PRELOAD": str(clock), "FAKE": fake}
        words = [sys.executable, "-c", code, json.dumps(given), str(first)]
        done = subprocess.run(
            words, capture_output=True, text=True, env=variables, cwd=ROOT, check=False
        )
        assert done.stdout == "1\n", done.stderr
    with site.reader() as reader:
        shared = reader.merged("run", "shared")
        assert shared.step.tolist() == list(range(60))
        assert shared.last.tolist() == [float(step) for step in range(60)]
        assert set(shared.count.tolist()) == {1}
    assert not metrana.is_initialized()


@pytest.mark.fault_row("D13")
@pytest.mark.parametrize("fake", ["~3600", "864000", "-864000"])
def test_a_server_whose_wall_clock_is_wrong(tmp_path: Path, clock: Path, fake: str) -> None:
    """To and fro by hours, days off: batches are stored once, runs end as they were left."""
    server = Server(tmp_path / "data")
    try:
        assert server.start("env", f"LD_PRELOAD={clock}", f"FAKE={fake}"), server.said
        card = server.home.card
        run = metrana.init(
            workspace_name="ws",
            project_name="proj",
            run_name="run",
            ingestion_url=card["url"],
            api_key=card["token"],
            disk=tmp_path / "spool",
            quiet=True,
        )
        for k in range(3 * ITEMS):
            log_item(run, k)
            if k % ITEMS == 0:
                run.flush(20)
        assert run.close(20).is_complete
        with server.reader() as reader:
            find(reader).check_whole(3 * ITEMS)
            info = reader.run("run")
            assert info.state == "finished"
            if fake != "~3600":
                off_s = info.created_ms / 1000 - time.time()
                assert abs(off_s - int(fake)) < 600, "the clock was not shifted"
        assert server.stop() == 0
    finally:
        server.clear()
