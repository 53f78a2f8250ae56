"""Backups: one state of a store that is in use, and what a restore does to another."""

from __future__ import annotations

import resource
import sqlite3
import stat
from pathlib import Path

import pytest

from metrana_async.errors import InitError, NotFoundError, StoreDamagedError, UnavailableError
from metrana_async.server.store.base import Commit
from metrana_async.server.store.sqlite import backup
from metrana_async.server.store.sqlite.backup import back_up, restore
from metrana_async.server.store.sqlite.files import DATABASE_NAME
from metrana_async.server.store.sqlite.store import SqliteStore
from tests.unit.server.store.samples import World, assert_same_answers, run_row


def filled(folder: Path, seed: int, *, is_sealed: bool = True) -> tuple[SqliteStore, World]:
    """An open store with points of every family, sealed and not."""
    world = World(seed)
    store = SqliteStore(folder)
    store.commit(world.catalogue())
    for part in range(2):
        points = [world.standard_points(500), world.episode_points(300)]
        store.commit(Commit(points=points, segments=[world.segments(20)]))
        for unit in store.due(now_s=0.0, everything=True) if part == 0 and is_sealed else ():
            store.seal(unit, dict.fromkeys(unit.series_nos, b"head"))
    return store, world


def test_a_backup_of_an_open_store_is_that_store(tmp_path: Path) -> None:
    """Sealed and unsealed points, catalogue and all; what is committed later is not in it."""
    store, world = filled(tmp_path / "store", 1)
    made = back_up(tmp_path / "store", tmp_path / "backup")
    assert (made.runs_count, made.nbytes) == (2, made.database.stat().st_size)
    assert stat.S_IMODE(made.database.stat().st_mode) == 0o600
    copy = SqliteStore(tmp_path / "backup")
    assert_same_answers(copy, store, world)
    assert copy.generation != store.generation
    copy.close()
    store.commit(Commit(runs=[run_row(9)]))
    copy = SqliteStore(tmp_path / "backup")
    assert copy.find_run_uid(f"{9:032x}") is None
    copy.close()
    store.close()


def test_commits_go_on_while_a_backup_is_made(tmp_path: Path, monkeypatch) -> None:
    """A commit between two steps of the copy is not in it, and does not make it start over."""
    store, _ = filled(tmp_path / "store", 2)
    copied = []

    class Slow(sqlite3.Connection):
        """Commits to the store between the steps."""

        def backup(self, target, *, pages, **more):
            def step(status, remaining, total):
                copied.append(remaining)
                if len(copied) < 5:
                    store.commit(Commit(runs=[run_row(100 + len(copied))]))

            super().backup(target, pages=1, progress=step, **more)

    def connect(path: str, *, read_only: bool) -> sqlite3.Connection:
        return sqlite3.connect(path, factory=Slow, isolation_level=None)

    monkeypatch.setattr(backup, "connect", connect)
    back_up(tmp_path / "store", tmp_path / "backup")
    assert copied == sorted(copied, reverse=True), "it started over"
    assert len(copied) > 10
    assert len(store.runs()) == 6
    copy = SqliteStore(tmp_path / "backup")
    assert len(copy.runs()) == 2
    copy.close()
    store.close()


def test_a_restore_keeps_what_was_there(tmp_path: Path) -> None:
    """The store is the backup, the old one lies aside, WAL and all, and can be restored again."""
    store, world = filled(tmp_path / "store", 3)
    back_up(tmp_path / "store", tmp_path / "backup")
    store.commit(Commit(runs=[run_row(9)]))
    store.close()
    replaced = restore(tmp_path / "backup", tmp_path / "store")
    assert replaced is not None
    assert replaced.parent == tmp_path / "store"
    copy, oracle = SqliteStore(tmp_path / "store"), SqliteStore(tmp_path / "backup")
    assert_same_answers(copy, oracle, world)
    assert copy.find_run_uid(f"{9:032x}") is None
    copy.close()
    oracle.close()
    again = restore(replaced, tmp_path / "store")
    assert again not in (None, replaced)
    store = SqliteStore(tmp_path / "store")
    assert store.find_run_uid(f"{9:032x}") is not None
    store.close()


def test_a_restore_into_nothing_makes_a_store(tmp_path: Path) -> None:
    """A new machine: nothing is replaced."""
    filled(tmp_path / "store", 4)[0].close()
    back_up(tmp_path / "store", tmp_path / "backup")
    assert restore(tmp_path / "backup", tmp_path / "new") is None
    store = SqliteStore(tmp_path / "new")
    assert len(store.runs()) == 2
    store.close()


def test_what_cannot_be_done_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Under a running server, from nothing, onto a backup, from a damaged or a newer one."""
    store, _ = filled(tmp_path / "store", 5)
    back_up(tmp_path / "store", tmp_path / "backup")
    with pytest.raises(InitError, match="holds a store already"):
        back_up(tmp_path / "store", tmp_path / "backup")
    with pytest.raises(InitError, match="in use by another server"):
        restore(tmp_path / "backup", tmp_path / "store")
    store.close()
    with pytest.raises(NotFoundError):
        back_up(tmp_path / "nothing", tmp_path / "more")
    with pytest.raises(NotFoundError):
        restore(tmp_path / "nothing", tmp_path / "store")
    database = tmp_path / "backup" / DATABASE_NAME
    whole = database.read_bytes()
    database.write_bytes(whole[:8192] + b"\xff" * 4096 + whole[12288:])
    with pytest.raises(StoreDamagedError):
        restore(tmp_path / "backup", tmp_path / "store")
    database.write_bytes(whole)
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InitError, match="format 99"):
        restore(tmp_path / "backup", tmp_path / "store")
    store = SqliteStore(tmp_path / "store")
    assert len(store.runs()) == 2
    store.close()


def test_a_full_disk_leaves_no_backup(tmp_path: Path) -> None:
    """Half a copy is never taken for a backup."""
    filled(tmp_path / "store", 6)[0].close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, limits[1]))
    try:
        with pytest.raises(UnavailableError):
            back_up(tmp_path / "store", tmp_path / "backup")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "backup" / DATABASE_NAME).exists()
    back_up(tmp_path / "store", tmp_path / "backup")
