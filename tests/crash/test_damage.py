"""A bit of the store's file flips: readers are told, nobody is given another number."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from metrana_async.errors import StoreDamagedError
from tests.crash.lanes import Client
from tests.crash.servers import Server
from tests.interop.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.fault_row("D15")]


def verify(server: Server) -> subprocess.CompletedProcess:
    """`python -m metrana_async.server verify`."""
    words = [sys.executable, "-m", "metrana_async.server", "verify", "--data-dir"]
    return subprocess.run(
        [*words, str(server.data_dir)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def test_a_damaged_tile_is_reported_and_nothing_of_it_is_served(server: Server) -> None:
    """`verify` names it, also beside a running server; what is whole is served, and stored."""
    client = Client(server)
    assert server.start()
    client.open()
    for _ in range(20):
        client.log()
    client.send()
    assert server.stop() == 0
    assert verify(server).returncode == 0
    database = server.data_dir / "metrana.db"
    with sqlite3.connect(database) as connection:
        tile_no, value = connection.execute(
            "SELECT tile_no, value FROM tile JOIN unit USING(unit_no)"
            " WHERE group_size < 1 << 40 LIMIT 1"
        ).fetchone()
    connection.close()
    whole = database.read_bytes()
    assert whole.count(value) == 1
    at = whole.index(value) + len(value) // 2
    database.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert server.start()
    found = verify(server)
    assert found.returncode == 1
    assert f"tile {tile_no} of the store is damaged" in found.stderr
    with server.reader() as reader:
        with pytest.raises(StoreDamagedError, match=f"tile {tile_no} "):
            reader.env_series("run", client.grid, env_id="a", episode=0)
        assert len(reader.series("run", client.auto).step) == 3 * 20
    newcomer = Client(server, 2)
    newcomer.open()
    newcomer.log()
    newcomer.send()
    assert newcomer.acked == 1
    assert server.stop() == 0
