"""Readers beside the one writer, and the WAL kept short between them.

Readers borrow a connection for one short read transaction. A checkpoint can only reuse the WAL
from its start while no reader looks at it, and readers that overlap without end would let it grow
without end: so when it is long, new readers wait at a gate for the moment the last one leaves.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import orjson

from metrana_async.errors import (
    DiskFullError,
    InternalError,
    MetranaError,
    StoreDamagedError,
    StoreFailedError,
    UnavailableError,
)

CHECKPOINT_BYTES: Final = 16 << 20
WAL_BYTES_MAX: Final = 48 << 20
_PAGE_BYTES: Final = 4_096
_PAUSE_S: Final = 0.06
_GATE_S_MAX: Final = 1.0
_DISK_FULL_RETRY_S: Final = 5.0
RESTORE: Final = "`python -m metrana_async.server verify` lists all that is; restore a backup"
_START_ANEW: Final = "the disk is failing; the server has to start anew"
WRITE_CODE: Final = 778
"""SQLITE_IOERR_WRITE: a write was refused, by a quota for one."""
_SYNC_CODES: Final = (1034, 1290)
"""SQLITE_IOERR_FSYNC and SQLITE_IOERR_DIR_FSYNC, which sqlite3 has names for from 3.11 on."""


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn what SQLite raises into errors of ours.

    Raises:
        UnavailableError: the disk refused (full, read-only, I/O), the database is locked or
            damaged; the classes below it say more.
        InternalError: a statement or a value was wrong, which is our mistake.
    """
    try:
        yield
    except (
        sqlite3.IntegrityError,
        sqlite3.ProgrammingError,
        sqlite3.InterfaceError,
        sqlite3.DataError,
        OverflowError,
    ) as error:
        raise InternalError(f"{what} failed: {error}") from error
    except (sqlite3.Error, OSError) as error:
        raise refusal(what, error) from error
    except (orjson.JSONDecodeError, UnicodeDecodeError, KeyError) as error:
        raise StoreDamagedError(f"{what}: a row is damaged: {error!r}", hint=RESTORE) from error


def refusal(what: str, error: sqlite3.Error | OSError) -> MetranaError:
    """The error of ours that says what a database or its disk refused."""
    text = f"{what} failed: {error}"
    if has_failed_to_sync(error):
        return StoreFailedError(text, hint=_START_ANEW)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "is full" in text:
        return DiskFullError(
            text, retry_after_s=_DISK_FULL_RETRY_S, hint="make room on the server's disk"
        )
    if any(word in text for word in ("malformed", "not a database", "decode to UTF-8")):
        return StoreDamagedError(text, hint=RESTORE)
    return UnavailableError(text, hint="is the disk full?")


def has_failed_to_sync(error: sqlite3.Error | OSError) -> bool:
    """Whether a sync failed: what it covered may be lost, and the next one would not say so.

    Always False under Python 3.10, whose sqlite3 does not tell; a commit that failed so writes all
    it wrote again, which is why that does no harm there.
    """
    return getattr(error, "sqlite_errorcode", None) in _SYNC_CODES


@contextlib.contextmanager
def write_transaction(connection: sqlite3.Connection, what: str) -> Iterator[None]:
    """All that is written inside becomes durable when it ends, or nothing does."""
    with disk_errors(what):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # SQLite has already rolled back after some I/O errors.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


class ReadPool:
    """Read connections, lent one transaction at a time to any thread."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._idle: list[sqlite3.Connection] = []
        self._gate = threading.Condition()
        self._readers_count = 0
        self._is_gated = False
        self._is_closed = False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a read transaction: one state of the database. Keep it short."""
        with self._gate:
            # The wait is bounded: a gate nobody opens must not stop reading.
            self._gate.wait_for(lambda: not self._is_gated, timeout=_GATE_S_MAX)
            if self._is_closed:
                raise UnavailableError("the store is closed")
            self._readers_count += 1
            connection = self._idle.pop() if self._idle else None
        try:
            with disk_errors("reading the store"):
                connection = connection or self._connect()
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("ROLLBACK")
        finally:
            with self._gate:
                self._readers_count -= 1
                if connection is not None:
                    self._give_back(connection)
                self._gate.notify_all()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._is_closed or connection.in_transaction:
            connection.close()
        else:
            self._idle.append(connection)

    @contextlib.contextmanager
    def paused(self, timeout_s: float) -> Iterator[bool]:
        """Hold new readers back; True when the last one left within `timeout_s`."""
        with self._gate:
            self._is_gated = True
            has_left = self._gate.wait_for(lambda: self._readers_count == 0, timeout=timeout_s)
        try:
            yield has_left
        finally:
            with self._gate:
                self._is_gated = False
                self._gate.notify_all()

    def close(self) -> None:
        """Close idle connections now and lent ones when they come back."""
        with self._gate:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class WalKeeper:
    """Checkpoints between commits. One that fails harms nothing and is tried again.

    All but its sync: SQLite would not write again what it wrote before the one that failed.
    """

    def __init__(self, connection: sqlite3.Connection, wal: Path, readers: ReadPool) -> None:
        self._connection = connection
        self._wal = wal
        self._readers = readers
        self._pending_bytes = 0

    def wrote(self, n_bytes: int) -> None:
        """Tell of a commit of about this size; may checkpoint, 15 ms for 16 MB.

        Raises:
            StoreFailedError: the disk could not sync.
        """
        self._pending_bytes += n_bytes + 8 * _PAGE_BYTES
        if self._pending_bytes < CHECKPOINT_BYTES:
            return
        try:
            _, in_wal, done = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            # What a reader held back is tried again a quarter of the way on.
            left = (in_wal - done) * _PAGE_BYTES
            self._pending_bytes = min(left, CHECKPOINT_BYTES * 3 // 4)
            if self._wal.stat().st_size > WAL_BYTES_MAX:
                self._truncate()
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", None)
            # Python 3.10 does not tell what failed: here, where it counts, the worst is assumed.
            if has_failed_to_sync(error) or (code is None and "disk I/O error" in str(error)):
                text = f"checkpointing failed: {error}"
                raise StoreFailedError(text, hint=_START_ANEW) from error

    def _truncate(self) -> None:
        with self._readers.paused(_PAUSE_S) as is_quiet:
            if is_quiet:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
