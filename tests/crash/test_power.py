"""The power goes: what was acknowledged is on the disk, whatever the kernel had not written yet."""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.disks import LoopDisk
from tests.crash.lanes import Client, check_all
from tests.crash.servers import Server, has_fired, needs_root, needs_strace

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    needs_root,
    pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="mkfs.ext4 is not installed"),
    pytest.mark.fault_row("D2"),
]
CUTS = 5


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A file system to be cut off."""
    made = LoopDisk(tmp_path)
    yield made
    made.clear()


@pytest.fixture
def server(disk: LoopDisk) -> Iterator[Server]:
    """A store on it."""
    made = Server(disk.at / "data")
    yield made
    made.clear()


def cut(disk: LoopDisk, server: Server) -> None:
    """Power off and on again: the server dies with it."""
    disk.cut_power()
    server.kill()
    disk.unmount()
    disk.mount()


def load(client: Client) -> None:
    """Log and send until nothing comes back; once the power is gone, errors do as well."""
    try:
        while True:
            client.log()
            client.send()
    except Exception as error:
        client.ended = error


@pytest.mark.timeout(240)
def test_acknowledged_batches_survive_power_cuts(disk: LoopDisk, server: Server) -> None:
    """Cut off at any time under load, again and again: file system and store recover each time."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    client = Client(server)
    lost = 0
    for _ in range(CUTS):
        assert server.start(), server.said
        client.open()
        client.send()
        loader = threading.Thread(target=load, args=(client,))
        loader.start()
        threading.Event().wait(rng.uniform(0.05, 0.5))  # the moment of the cut is what is drawn
        promised = client.acked
        disk.cut_power()
        loader.join(30)
        assert not loader.is_alive()
        # A machine without power answers nobody: what came later is no promise.
        client.acked = promised
        marker = disk.at / "marker"
        with pytest.raises(OSError):
            marker.write_text("the disk is gone")
        server.kill()
        disk.unmount()
        disk.mount()
        assert not marker.exists()
        lost += len(client.frames) - client.acked
    assert lost, "no cut came while something was on its way"
    assert server.start(), server.said
    client.open()
    client.send()
    check_all(client)
    assert server.stop() == 0


@needs_strace
def test_what_a_killed_server_left_unsynced_is_not_answered_for(
    disk: LoopDisk, server: Server, tmp_path: Path
) -> None:
    """Killed between writing and syncing, then the power is cut: "duplicate" was a promise too.

    SQLite finds the transaction whole in the kernel's memory and takes it for committed; the
    restarted server has to put it on the disk before it says that it has it.
    """
    client = Client(server)
    assert server.start()
    client.open()
    client.log()
    client.send()
    assert server.stop() == 0
    client.log()
    for nth in range(1, 20):
        # How many syncs the start takes is SQLite's affair; the first behind the open is ours.
        trace = tmp_path / f"trace-{nth}"
        is_up = server.start_with_fault(f"fdatasync:signal=KILL:when={nth}", trace)
        has_opened = is_up and client.try_to(client.open)
        while has_opened and len(client.frames) < 100 and client.try_to(client.send):
            client.log()
        assert (server.wait(), has_fired(trace, "= ?")) == (-signal.SIGKILL, True)
        if has_opened:
            break
    assert server.start()
    client.open()
    client.send()
    assert client.duplicates == 1, "the batch was not in the WAL: the kill came too early"
    cut(disk, server)
    assert server.start(), server.said
    client.check()
    assert server.stop() == 0
