"""Copies of a store: made while it is used, and put back in its place.

A backup is a folder with the database as it was at one moment, every acknowledged batch of that
moment in it. It is a store like any other: a server can be started on it.

A server that opens a restored store draws a new generation, as at every opening. Its clients see
that, compare high-water marks, and send again what the backup lacks and they still hold; what they
do not hold any more they declare lost (`server_rollback`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metrana_async.errors import InitError, NotFoundError, StoreDamagedError
from metrana_async.server.store.sqlite.connections import disk_errors
from metrana_async.server.store.sqlite.files import (
    DATABASE_NAME,
    lock_folder,
    prepare_folder,
    sync_folder,
)
from metrana_async.server.store.sqlite.schema import STEPS, connect
from metrana_async.server.store.sqlite.verify import compare_sums

_STEP_PAGES: Final = 4_096
_PART: Final = ".part"


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup holds.

    Attributes:
        database: its file.
        nbytes: the file's size.
        runs_count: runs in it.
    """

    database: Path
    nbytes: int
    runs_count: int


def back_up(data_dir: Path, folder: Path) -> Backup:
    """Copy the store of `data_dir`, as it is now, into `folder`; a server may be using it.

    Durable when this returns, and not there as a backup before. Commits go on meanwhile; the WAL
    grows by them until the copy is made.

    Raises:
        NotFoundError: there is no store.
        InitError: `folder` has a store or backup already, or cannot be used.
        UnavailableError: the disk refuses; `StoreDamagedError` where the store is damaged.
    """
    source = _existing(data_dir)
    target = folder / DATABASE_NAME
    if target.exists():
        raise InitError(f"{folder} holds a store already", hint="choose an empty folder")
    prepare_folder(folder, is_to_serve=False)
    part = folder / (DATABASE_NAME + _PART)
    with disk_errors(f"backing up {data_dir}"):
        _copy(source, part)
        found = _check(part)
        part.replace(target)
        sync_folder(folder)
    return Backup(target, target.stat().st_size, found)


def restore(folder: Path, data_dir: Path) -> Path | None:
    """Put the backup of `folder` in the place of the store of `data_dir`; no server may run there.

    Returns:
        The folder inside `data_dir` with what was there before, or None where nothing was.

    Raises:
        NotFoundError: `folder` holds no backup.
        InitError: a server runs on `data_dir`, or the backup is of a newer version.
        UnavailableError: the disk refuses, or the backup is damaged; the store is as it was.
    """
    source = _existing(folder)
    prepare_folder(data_dir, is_to_serve=False)
    database = data_dir / DATABASE_NAME
    with _locked(data_dir):
        part = data_dir / (DATABASE_NAME + _PART)
        with disk_errors(f"restoring {folder}"):
            _copy(source, part)
            _check(part)
            replaced = _put_aside(database) if database.exists() else None
            part.replace(database)
            sync_folder(data_dir)
    return replaced


def _existing(folder: Path) -> Path:
    database = folder / DATABASE_NAME
    if not database.is_file():
        raise NotFoundError(f"there is no store in {folder}")
    return database


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    lock = lock_folder(data_dir)
    try:
        yield
    finally:
        os.close(lock)


def _copy(source: Path, part: Path) -> None:
    """Copy one state of a database into a fresh file, and sync it."""
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with (
        closing(connect(str(source), read_only=True)) as reader,
        closing(sqlite3.connect(part, isolation_level=None)) as writer,
    ):
        # One read transaction around all steps: commits of others do not make it start over.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        reader.backup(writer, pages=_STEP_PAGES)
        reader.execute("ROLLBACK")
    with part.open("rb") as file:
        os.fsync(file.fileno())


def _check(database: Path) -> int:
    """Check a copy; returns how many runs it has.

    Raises:
        InitError: it is of a newer version, or no store.
        sqlite3.Error, StoreDamagedError: it is damaged.
    """
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not 1 <= version <= len(STEPS):
            raise InitError(
                f"{database} has format {version}, this version knows 1 to {len(STEPS)}",
                hint="it is of a newer release, or no store",
            )
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise sqlite3.DatabaseError(f"{database} is malformed: {answer}")
        if version == len(STEPS):
            for problem in compare_sums(connection):
                if problem:
                    raise StoreDamagedError(problem)
        (count,) = connection.execute("SELECT count(*) FROM run").fetchone()
    return int(count)


def _put_aside(database: Path) -> Path:
    """Keep what is there in a folder of its own and take its WAL out of the way."""
    data_dir = database.parent
    aside = data_dir / time.strftime("replaced-%Y%m%dT%H%M%S", time.gmtime())
    number = 0
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name.split('.')[0]}.{number}")
    aside.mkdir(mode=0o700)
    with contextlib.suppress(sqlite3.Error), closing(connect(str(database), read_only=False)) as it:
        # Whole in one file, where it still can be: then no moment has it without its WAL.
        it.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    names = [DATABASE_NAME + ending for ending in ("", "-wal")]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.link(data_dir / name, aside / name)
    sync_folder(aside)
    sync_folder(data_dir)
    # A WAL is of the database it lies beside: SQLite would play the old one into the new.
    for ending in ("-wal", "-shm"):
        (data_dir / (DATABASE_NAME + ending)).unlink(missing_ok=True)
    return aside
