"""The server's disk fills up and is emptied again while a client logs."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import WaitTimeoutError
from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import eventually, home_in

pytestmark = [pytest.mark.e2e, pytest.mark.fault_row("D3")]

TMPFS = "mount -t tmpfs -o size=6m,mode=700 tmpfs {0} && exec {1}"


def may_mount() -> bool:
    """Whether this process may make a mount namespace."""
    command = ["unshare", "-m", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, check=False).returncode == 0


class Limited:
    """No file of the server may grow beyond what it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, words: list[str]) -> list[str]:
        return words

    def fill(self, pid: int) -> None:
        biggest = max(path.stat().st_size for path in (self.folder / "data").iterdir())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (biggest, resource.RLIM_INFINITY))

    def empty(self, pid: int) -> None:
        whole = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, whole)


class SmallDisk:
    """The store lies on a file system of a few megabytes that only the server sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, words: list[str]) -> list[str]:
        return ["unshare", "-m", "sh", "-c", TMPFS.format(self.folder, " ".join(words))]

    def _filler(self, pid: int) -> Path:
        return Path(f"/proc/{pid}/root{self.folder}/filler")

    def fill(self, pid: int) -> None:
        with contextlib.suppress(OSError), self._filler(pid).open("wb", 0) as file:
            while True:
                file.write(b"\0" * 4096)

    def empty(self, pid: int) -> None:
        self._filler(pid).unlink()


@pytest.fixture(params=["limit", "tmpfs"])
def disk(request, tmp_path, monkeypatch):
    """A server whose disk can be filled."""
    if request.param == "tmpfs" and not may_mount():
        pytest.skip("may not mount")
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    disk = (SmallDisk if request.param == "tmpfs" else Limited)(tmp_path)
    with home_in(tmp_path) as home:
        words = [sys.executable, "-m", "metrana_async.server", "--data-dir", home.data_dir]
        server = subprocess.Popen(disk.command(words), stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert " on http" in server.stderr.readline()
        disk.home, disk.pid = home, server.pid
        yield disk
        if metrana.is_initialized():
            metrana.close(5)
        server.terminate()
        assert server.wait(30) == 0
        rest = server.stderr.read()
        server.stderr.close()
        assert "Traceback" not in rest, rest


def log(run, k):
    """Call number k: an own number everywhere."""
    run.log("auto", [float(k)] * 10)
    run.log("explicit", float(k), step=k)
    run.log_distributed("merge", float(k), step=k)
    run.log_rl_environment_step("r", [[float(k)] * 50] * 8, k, list("abcdefgh"), 0)
    return 10 + 1 + 1 + 400


def check(home, count):
    assert home.points("auto") == [(10 * k + i, float(k)) for k in range(count) for i in range(10)]
    assert home.points("explicit") == [(k, float(k)) for k in range(count)]
    with home.reader() as reader:
        found = reader.env_series("run", "r", env_id="h", episode=0)
        assert found.env_step.tolist() == list(range(50 * count))
        assert found.value.tolist() == [float(k) for k in range(count) for _ in range(50)]
        assert reader.merged("run", "merge").last.tolist() == [float(k) for k in range(count)]
        ledger = reader.ledger("run")
    assert (ledger.visible, ledger.difference) == (412 * count, 0)


def test_a_full_disk_costs_nothing_but_time(disk):
    """In memory meanwhile, one warning a cause, acked points kept, the rest delivered later."""
    home = disk.home
    run = home.init()
    count = 0
    for _ in range(5):
        log(run, count)
        count += 1
    acked = run.flush(10).committed
    disk.fill(disk.pid)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        until_s = time.monotonic() + 4
        while run.get_metrics().send_errors < 3 and time.monotonic() < until_s:
            for _ in range(100):
                log(run, count)
                count += 1
            try:
                acked = run.flush(0.3).committed
            except WaitTimeoutError:
                acked = run.get_metrics().committed
    assert run.get_metrics().send_errors, "the disk was never full"
    texts = [str(w.message) for w in told]
    assert len(texts) == len(set(texts)) <= 2, texts
    assert any("full" in text or "disk" in text for text in texts), texts
    statistics = run.get_metrics()
    assert statistics.is_balanced
    assert statistics.losses == {}
    assert statistics.in_flight + statistics.spooled == statistics.accepted - acked
    assert len(home.points("explicit")) >= 5
    disk.empty(disk.pid)
    info = run.close(40)
    assert info.is_complete
    assert info.statistics.committed == 412 * count
    check(home, count)


def test_a_server_killed_on_a_full_disk(tmp_path, monkeypatch):
    """Killed while full, started while full and again with room: what was acked is there."""
    if not may_mount():
        pytest.skip("may not mount")
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    disk = SmallDisk(tmp_path)
    with home_in(tmp_path) as home, home.held_down():
        words = [sys.executable, "-m", "metrana_async.server", "--data-dir", home.data_dir]
        # A shell keeps the file system while servers come and go in it.
        keeper = subprocess.Popen(
            disk.command(["cat"]), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        eventually(
            lambda: str(tmp_path) in Path(f"/proc/{keeper.pid}/mounts").read_text(), "mounted"
        )

        def start():
            inside = ["nsenter", "-t", str(keeper.pid), "-m", "-w" + str(ROOT), *words]
            return subprocess.Popen(inside, stderr=subprocess.PIPE, text=True, cwd=ROOT)

        server = start()
        assert " on http" in server.stderr.readline()
        run = home.init()
        for k in range(20):
            log(run, k)
        run.flush(10)
        disk.fill(keeper.pid)
        count = 20
        while not run.get_metrics().send_errors:
            log(run, count)
            count += 1
            time.sleep(0.001)  # a training step: the pace of the loop
        server.send_signal(signal.SIGKILL)
        server.communicate()
        server = start()
        first = server.stderr.readline()
        if " on http" not in first:
            assert "full" in first or "No space" in first, first
            server.communicate()
            disk.empty(keeper.pid)
            server = start()
            assert " on http" in server.stderr.readline()
        else:
            assert len(home.points("explicit")) >= 20
            disk.empty(keeper.pid)
        info = run.close(40)
        assert info.is_complete
        check(home, count)
        server.terminate()
        _, rest = server.communicate(timeout=30)
        assert rest == ""
        keeper.stdin.close()
        keeper.wait()
