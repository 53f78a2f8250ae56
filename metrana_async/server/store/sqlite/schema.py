"""Tables of the embedded store, and how an older file becomes the newest.

`user_version` counts the steps that were applied. A step is never edited once released.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from metrana_async.errors import InitError
from metrana_async.server.store.sqlite.connections import WRITE_CODE

STEPS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE run(
        run_no INTEGER PRIMARY KEY, run_uid TEXT NOT NULL, workspace TEXT NOT NULL,
        project TEXT NOT NULL, name TEXT NOT NULL, created_ms INTEGER NOT NULL,
        state TEXT NOT NULL, state_ms INTEGER NOT NULL, orchestration_ids TEXT NOT NULL,
        exception_type TEXT, counters TEXT NOT NULL);
    CREATE INDEX run_uid ON run(run_uid);
    CREATE INDEX run_name ON run(workspace, project, name);
    CREATE TABLE writer(
        writer_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, writer_id TEXT NOT NULL,
        order_us INTEGER NOT NULL, logger_id TEXT, process TEXT NOT NULL,
        is_online INTEGER NOT NULL, opened_ms INTEGER NOT NULL, seen_ms INTEGER NOT NULL,
        left_how TEXT, counters TEXT NOT NULL);
    CREATE INDEX writer_run ON writer(run_no);
    -- A unit is what is sealed together. `sealed` is its last log row that lies in tiles;
    -- `group_size` is chosen at its first seal and never changes.
    CREATE TABLE unit(
        unit_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, group_size INTEGER,
        sealed INTEGER NOT NULL);
    CREATE TABLE series(
        series_no INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, unit_no INTEGER NOT NULL,
        definition TEXT NOT NULL);
    CREATE INDEX series_run ON series(run_no);
    CREATE TABLE env(
        run_no INTEGER, env_no INTEGER, name TEXT NOT NULL,
        PRIMARY KEY(run_no, env_no)) WITHOUT ROWID;
    -- `digest` is unsigned on the wire and wraps to a signed integer here.
    CREATE TABLE lane(
        writer_no INTEGER, lane INTEGER, seq INTEGER NOT NULL, digest INTEGER NOT NULL,
        PRIMARY KEY(writer_no, lane)) WITHOUT ROWID;
    CREATE TABLE page(
        run_no INTEGER, digest TEXT, frame BLOB NOT NULL, PRIMARY KEY(run_no, digest));
    -- env_no and episode are -1 where there is none: NULLs would not be unique.
    CREATE TABLE attribute(
        run_no INTEGER, env_no INTEGER, episode INTEGER, path TEXT, value TEXT NOT NULL,
        PRIMARY KEY(run_no, env_no, episode, path));
    CREATE TABLE cut(
        cut_no INTEGER PRIMARY KEY, series_no INTEGER NOT NULL, env_no INTEGER NOT NULL,
        episode INTEGER NOT NULL, generation INTEGER NOT NULL, time_ms INTEGER NOT NULL,
        discarded_points INTEGER NOT NULL);
    CREATE INDEX cut_series ON cut(series_no);
    CREATE TABLE head(series_no INTEGER PRIMARY KEY, cursors BLOB NOT NULL);
    CREATE TABLE log(log_no INTEGER PRIMARY KEY, tables BLOB NOT NULL);
    -- `value` is last: what lies on overflow pages is read only when it is asked for.
    CREATE TABLE tile(
        tile_no INTEGER PRIMARY KEY, unit_no INTEGER NOT NULL, group_no INTEGER NOT NULL,
        points_count INTEGER NOT NULL,
        key_low INTEGER NOT NULL, key_high INTEGER NOT NULL,
        rl_step_low INTEGER NOT NULL, rl_step_high INTEGER NOT NULL,
        episode_low INTEGER NOT NULL, episode_high INTEGER NOT NULL,
        step_low INTEGER NOT NULL, step_high INTEGER NOT NULL,
        integers BLOB NOT NULL, value BLOB NOT NULL);
    -- Holds all that choosing tiles needs, so that choosing reads no tile.
    CREATE INDEX tile_bounds ON tile(
        unit_no, group_no, rl_step_low, rl_step_high, episode_low, episode_high,
        step_low, step_high, key_low, key_high, points_count);
    CREATE INDEX tile_small ON tile(unit_no, group_no, points_count) WHERE points_count < 16384;
    """,
    """
    CREATE INDEX writer_id ON writer(writer_id);
    -- What deleted runs leave: their names for late writers, their numbers so that none comes back.
    -- Units and tiles of a deleted run stay until they are purged, a few at a time.
    CREATE TABLE deleted_run(
        run_no INTEGER PRIMARY KEY, run_uid TEXT NOT NULL, workspace TEXT NOT NULL,
        project TEXT NOT NULL, name TEXT NOT NULL, deleted_ms INTEGER NOT NULL,
        series_no_max INTEGER NOT NULL);
    CREATE INDEX deleted_run_uid ON deleted_run(run_uid);
    CREATE TABLE deleted_writer(
        writer_no INTEGER PRIMARY KEY, writer_id TEXT NOT NULL, run_no INTEGER NOT NULL);
    CREATE INDEX deleted_writer_id ON deleted_writer(writer_id);
    """,
    """
    ALTER TABLE writer ADD COLUMN alias TEXT NOT NULL DEFAULT '';
    """,
    """
    -- See `checksums`; NULL in rows that are older than this.
    ALTER TABLE log ADD COLUMN sum INTEGER;
    ALTER TABLE head ADD COLUMN sum INTEGER;
    ALTER TABLE tile ADD COLUMN sum INTEGER;
    """,
    """
    CREATE TABLE answer(
        writer_no INTEGER, lane INTEGER, seq INTEGER, reason TEXT, counts TEXT NOT NULL,
        PRIMARY KEY(writer_no, lane, seq)) WITHOUT ROWID;
    """,
    """
    -- See LaneRow; lanes that are older than this begin with none.
    ALTER TABLE lane ADD COLUMN recent BLOB NOT NULL DEFAULT x'';
    """,
    """
    -- See LeaseRow.
    CREATE TABLE lease(
        run_no INTEGER, env_no INTEGER, writer_no INTEGER, nonce TEXT NOT NULL,
        first INTEGER NOT NULL, count INTEGER NOT NULL,
        PRIMARY KEY(run_no, env_no, writer_no)) WITHOUT ROWID;
    """,
    """
    -- See `pyramid`; depth 0 is the coarsest. A tile that is older than this has none.
    CREATE TABLE pyramid(
        unit_no INTEGER, depth INTEGER, tile_no INTEGER, level INTEGER NOT NULL,
        records BLOB NOT NULL, sum INTEGER NOT NULL,
        PRIMARY KEY(unit_no, depth, tile_no)) WITHOUT ROWID;
    """,
)


def connect(path: str, *, read_only: bool) -> sqlite3.Connection:
    """Open a connection in autocommit mode; transactions are begun and ended by statement.

    Connections move between threads, one user at a time, hence no check of the thread.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=64
    )
    # secure_delete, on by default in Debian's build, writes a quarter more for nothing here.
    settings = ["secure_delete = OFF", "temp_store = MEMORY", "cache_size = -8000"]
    if read_only:
        settings.append("query_only = ON")
    else:
        settings += ["synchronous = FULL", "wal_autocheckpoint = 0"]
    try:
        if not read_only:
            connection.execute("PRAGMA page_size = 4096")
            # Pages that log rows leave behind are used again, and given back at close.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            # SQLite falls back to another mode without an error where there is no shared memory.
            if mode != "wal":
                raise sqlite3.OperationalError(f"the file system allows no WAL, only {mode!r}")
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def settle(connection: sqlite3.Connection, wal: Path) -> None:
    """Make durable what an earlier process left in the WAL, before anything of it is answered for.

    A process that was killed between writing and syncing leaves whole transactions that SQLite
    takes for committed and the disk may not have.

    Raises:
        sqlite3.Error, OSError: the disk refuses; that it takes no more is lived with.
    """
    with contextlib.suppress(FileNotFoundError), wal.open("rb") as file:
        os.fsync(file.fileno())
    try:
        # Written again rather than synced alone: after a failed sync the kernel takes pages for
        # clean that the disk never had.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        is_refused = getattr(error, "sqlite_errorcode", None) == WRITE_CODE
        if not is_refused and "is full" not in str(error):
            raise


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the steps this file lacks, each in a transaction of its own.

    Raises:
        InitError: the file is from a newer version.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(STEPS):
        raise InitError(
            f"the store has format {version}, this version knows {len(STEPS)}",
            hint="upgrade metrana-async, or choose another data folder",
        )
    for number, step in enumerate(STEPS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {step}; PRAGMA user_version = {number}; COMMIT;")
