"""The store's folder: private, locked, and not on a network."""

from __future__ import annotations

import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from metrana_async import locations
from metrana_async.errors import InitError
from metrana_async.server.store.base import Commit, LaneRow
from metrana_async.server.store.sqlite import files
from metrana_async.server.store.sqlite.schema import STEPS
from metrana_async.server.store.sqlite.store import SqliteStore
from tests.unit.server.store.samples import World

RECENT_SINCE = 6
"""The format that keeps the digests of a lane's recent batches."""


def test_the_folder_is_private(tmp_path: Path) -> None:
    """The folder is 0700 and every file in it 0600, the WAL included."""
    folder = tmp_path / "a" / "store"
    store = SqliteStore(folder)
    store.commit(World(1).catalogue())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {"metrana.db", "metrana.db-wal", "metrana.lock"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    store.close()


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    """Opening a store that is open names the process that has it; closing frees it."""
    store = SqliteStore(tmp_path)
    with pytest.raises(InitError, match=r"in use by another server \(process \d+\)"):
        SqliteStore(tmp_path)
    store.close()
    store.close()
    SqliteStore(tmp_path).close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A file of a later version is not touched, and the message says so."""
    SqliteStore(tmp_path).close()
    database = sqlite3.connect(tmp_path / files.DATABASE_NAME)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InitError, match="format 99"):
        SqliteStore(tmp_path)


@pytest.mark.parametrize("version", range(1, len(STEPS)))
def test_a_file_of_an_older_format_becomes_the_newest(tmp_path: Path, version: int) -> None:
    """What it holds is there, and what is new can be written."""
    database = sqlite3.connect(tmp_path / files.DATABASE_NAME)
    for step in STEPS[:version]:
        database.executescript(step)
    database.execute(f"PRAGMA user_version = {version}")
    run = (1, f"{1:032x}", "ws", "proj", "old", 1, "running", 1, '["job"]', None, "{}")
    database.execute(f"INSERT INTO run VALUES({','.join('?' * 11)})", run)
    writer = (1, 1, "b" * 32, 5, None, "{}", 1, 1, 1, None, "{}")
    columns = [row[1] for row in database.execute("PRAGMA table_info(writer)")][:11]
    sql = f"INSERT INTO writer({','.join(columns)}) VALUES({','.join('?' * 11)})"
    database.execute(sql, writer)
    lane = (1, 0, 7, -1) if version < RECENT_SINCE else (1, 0, 7, -1, b"8 digits")
    database.execute(f"INSERT INTO lane VALUES({','.join('?' * len(lane))})", lane)
    database.commit()
    database.close()
    store = SqliteStore(tmp_path)
    (old,) = store.run_contents(1).writers
    store.commit(Commit(writers=[replace(old, alias="a" * 32)]))
    assert [w.alias for w in store.run_contents(1).writers] == ["a" * 32]
    assert store.find_run("ws", "proj", "old").run_uid == f"{1:032x}"
    recent = b"" if version < RECENT_SINCE else b"8 digits"
    assert store.run_contents(1).lanes == [LaneRow(1, 0, 7, 2**64 - 1, recent)]
    store.commit(Commit(lanes=[LaneRow(1, 0, 8, 5, b"16 digits, or so")]))
    assert store.run_contents(1).lanes == [LaneRow(1, 0, 8, 5, b"16 digits, or so")]
    store.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Foreign bytes under the database's name raise InitError and stay."""
    (tmp_path / files.DATABASE_NAME).write_bytes(b"not a database" * 1_000)
    with pytest.raises(InitError, match="cannot be opened"):
        SqliteStore(tmp_path)
    assert (tmp_path / files.DATABASE_NAME).read_bytes().startswith(b"not a database")


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mount that holds the folder decides; deeper and later mounts win."""
    mounts = tmp_path / "mountinfo"
    shared = tmp_path / "my data"
    shared.mkdir()
    escaped = str(shared).replace(" ", "\\040")
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:40 / {escaped} rw shared:1 - nfs4 host:/x rw\n"
    )
    monkeypatch.setattr(locations, "_MOUNTS", mounts)
    assert locations.file_system_type(tmp_path) == "ext4"
    with pytest.raises(InitError, match=r"network file system \(nfs4\)"):
        SqliteStore(shared / "store")
    monkeypatch.setattr(locations, "_MOUNTS", tmp_path / "nothing")
    assert locations.file_system_type(tmp_path) is None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in the way raises InitError that names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InitError, match="file/store cannot be used"):
        SqliteStore(tmp_path / "file" / "store")
