"""The store's disk refuses: full, failing, slow. No answer says more than what is on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from metrana_async.errors import (
    DiskFullError,
    StoreFailedError,
    TransportError,
    UnavailableError,
)
from tests.crash.disks import fill, small_disk
from tests.crash.lanes import Client
from tests.crash.servers import Server, has_fired, needs_root, needs_strace
from tests.unit.server.ingest.helpers import TestWriter, rows, standard

pytestmark = pytest.mark.e2e


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[Server]:
    """A store on a disk of six megabytes."""
    with small_disk(tmp_path / "small", 6) as disk:
        made = Server(disk / "data")
        yield made
        made.clear()


def with_history(server: Server) -> Client:
    """A client that has stored something, on a server that is down again."""
    client = Client(server)
    assert server.start()
    client.open()
    for _ in range(3):
        client.log()
        client.send()
    assert server.stop() == 0
    return client


def log_for_ever(client: Client) -> None:
    """Join, then log and send one batch after the other."""
    client.open()
    for _ in range(100):
        client.log()
        client.send()


@needs_root
@pytest.mark.fault_row("D3")
def test_a_full_disk_is_507_and_a_time_to_come_back(small_server: Server) -> None:
    """Nothing is half applied, what was stored can be read, and it recovers with space."""
    client = Client(small_server)
    assert small_server.start()
    client.open()
    client.log()
    client.send()
    filler = fill(small_server.data_dir.parent)
    refusals = []
    for _ in range(200):
        # What a request needs may still fit; many do not.
        client.log()
        try:
            client.send()
        except DiskFullError as error:
            refusals.append(error)
            if len(refusals) == 3:
                break
    assert len(refusals) == 3, "the disk was never full"
    for error in refusals:
        assert (error.status, error.headers["Retry-After"]) == (507, "5")
        assert error.retry_after_s == 5.0
    newcomer = Client(small_server, 2)
    with pytest.raises(DiskFullError):
        newcomer.open()
    with small_server.reader() as reader:
        assert len(reader.series("run", client.auto).step) == 3 * client.acked
        assert len(reader.run("run").writers) == 1
        assert reader.ledger("run").difference == 0
    filler.unlink()
    client.send()
    newcomer.open()
    newcomer.log()
    newcomer.send()
    client.check()
    newcomer.check()
    assert client.acked == len(client.frames)
    assert client.duplicates == 0, "something of a refused request was stored"
    assert small_server.stop() == 0


@needs_strace
@pytest.mark.slow
@pytest.mark.fault_row("D3")
@pytest.mark.parametrize(
    ("fault", "refusal"),
    [("ENOSPC", DiskFullError), ("EDQUOT", UnavailableError), ("EIO", UnavailableError)],
)
def test_a_write_that_fails_once_stores_nothing(
    server: Server, tmp_path: Path, fault: str, refusal: type[TransportError]
) -> None:
    """The nth write of the store fails: the request is refused whole, the next one goes."""
    client = with_history(server)
    refused = 0
    for nth in range(1, 30, 4):
        trace = tmp_path / f"trace-{nth}"
        if not server.start_with_fault(f"pwrite64:error={fault}:when={nth}", trace):
            assert has_fired(trace)
            server.wait()
            continue
        with contextlib.suppress(refusal):
            log_for_ever(client)
            pytest.fail("no write failed")
        refused += 1
        client.open()
        client.send()
        client.check()
        assert client.acked == len(client.frames)
        assert server.stop() == 0
        assert has_fired(trace)
    assert refused
    assert client.duplicates == 0, "something of a refused request was stored"


@needs_strace
@pytest.mark.slow
@pytest.mark.fault_row("D4")
def test_a_sync_that_fails_acknowledges_nothing_and_ends_the_server(
    server: Server, tmp_path: Path
) -> None:
    """No ack, no further commit, exit with a reason; the next server has all that was acked."""
    client = with_history(server)
    refused = 0
    for nth in range(1, 20):
        trace = tmp_path / f"trace-{nth}"
        # From the nth on every sync fails: a server that goes on would be seen to.
        is_up = server.start_with_fault(f"fdatasync:error=EIO:when={nth}+", trace)
        if is_up:
            with pytest.raises(StoreFailedError):
                log_for_ever(client)
            refused += 1
        else:
            assert "cannot be opened: disk I/O error" in server.said
        assert server.wait() == 1
        assert has_fired(trace)
        if len(client.frames) > client.acked:
            assert "disk I/O error" in server.said
            break
    assert refused
    assert server.start()
    client.open()
    client.send()
    client.check()
    assert client.acked == len(client.frames)
    assert server.stop() == 0


@needs_strace
@pytest.mark.slow
@pytest.mark.fault_row("D4")
def test_a_checkpoint_that_cannot_sync_ends_the_server(server: Server, tmp_path: Path) -> None:
    """SQLite would trust the next sync, and then throw away the only good copy, the WAL."""
    client = with_history(server)
    trace = tmp_path / "trace"
    # The first sync of the database file is that of the start.
    assert server.start_with_fault("fdatasync:error=EIO:when=2+", trace, endings=[""])
    client.open()
    big = TestWriter(server, 2, series=(standard("big"),), run_name="big")
    big.open()
    n = 1 << 20

    def fill_the_wal() -> None:
        for _ in range(20):
            big.send(rows([None] * n, np.arange(n)))
            client.log()
            client.send()

    with pytest.raises(StoreFailedError):
        fill_the_wal()
    assert server.wait() == 1
    assert has_fired(trace)
    assert "checkpointing failed: disk I/O error" in server.said
    assert server.start()
    known = big.open().acked[0]
    assert known in (big.seq - 1, big.seq)
    client.open()
    client.send()
    client.check()
    with server.reader() as reader:
        assert len(reader.series("big", "big").step) == known * n
    assert server.stop() == 0
