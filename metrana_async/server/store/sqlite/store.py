"""The embedded store: one SQLite file, one writer, any number of readers.

The way of a point: `commit` writes it into a **log** row, one a commit, beside the catalogue rows
and lane marks of the same transaction, and appends it to the in-memory **tail**; `seal` moves a
unit's tail into **tiles**. Until then a restart rebuilds the tail from the log.

Why each point is read exactly once: a reader first takes the tail as it is, then begins its read
transaction, reads the unit's `sealed` mark in it, and leaves out tail entries at or below the
mark. Sealing moves the mark and writes the tiles in one transaction, and empties the tail after
it; so whenever it happens, an entry is in the tiles the reader sees or in its tail, never in both.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from metrana_async.errors import (
    InitError,
    InternalError,
    StoreDamagedError,
    StoreFailedError,
    UnavailableError,
)
from metrana_async.server.query.buckets import Buckets
from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    Commit,
    CutRow,
    DeletedRun,
    Outline,
    RunContents,
    RunRow,
    SealUnit,
    StoredEnvSteps,
    StoredPoints,
)
from metrana_async.server.store.sqlite import catalogue, pyramid_table, tile_table
from metrana_async.server.store.sqlite.checksums import blob_sum, check
from metrana_async.server.store.sqlite.connections import (
    ReadPool,
    WalKeeper,
    disk_errors,
    write_transaction,
)
from metrana_async.server.store.sqlite.files import DATABASE_NAME, lock_folder, prepare_folder
from metrana_async.server.store.sqlite.log_rows import decode_log_row, encode_log_row
from metrana_async.server.store.sqlite.rows import Filter, Rows, concat_rows, tables_as_rows
from metrana_async.server.store.sqlite.schema import connect, migrate, settle
from metrana_async.server.store.sqlite.tail import Entry, Table, Tail, UnitTail
from metrana_async.server.store.sqlite.tiles import due_points
from metrana_async.server.store.sqlite.units import NO_UNIT, UNIT_SERIES_COUNT, Unit, Units
from metrana_async.wire.model import Int64Array

TAIL_BYTES_MAX: Final = 64 << 20
TAIL_AGE_S: Final = 60.0
GIVEN_BACK_PAGES: Final = 8_192
"""At most so many unused pages (32 MB) are returned to the disk at close, to keep it short."""
LOG_BYTES_MAX: Final = 128 << 20
"""Log rows kept for slow units; beyond it the unit that holds the oldest is sealed."""

IMPROVED_TILES: Final = 4
"""Of an older version, given a pyramid in one go: some ten milliseconds."""


class SqliteStore:
    """A `PointStore` in a folder of the local disk. The opening thread need not be the owner."""

    def __init__(self, folder: Path | str) -> None:
        """Open the folder, make it where there is none, and take it for this process.

        Raises:
            InitError: another server has it, it is on a network file system, cannot be written,
                is damaged, or was written by a newer version.
        """
        self._folder = Path(folder)
        self._generation = secrets.token_hex(16)
        self._units = Units()
        self._tail = Tail()
        self._log_rows: deque[tuple[int, int]] = deque()
        self._log_bytes = 0
        self._next_log_no = 1
        self._failure: StoreFailedError | None = None
        self._without_pyramid: list[tuple[int, int, int]] | None = None
        prepare_folder(self._folder)
        self._lock: int | None = lock_folder(self._folder)
        path = str(self._folder / DATABASE_NAME)
        self._readers = ReadPool(lambda: connect(path, read_only=True))
        try:
            self._writer = connect(path, read_only=False)
            wal = Path(path + "-wal")
            settle(self._writer, wal)
            self._wal = WalKeeper(self._writer, wal, self._readers)
            migrate(self._writer)
            with disk_errors("loading the store"):
                self._load()
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            raise InitError(f"the store in {folder} cannot be opened: {error}") from error
        except UnavailableError as error:
            self.close()
            text = f"the store in {folder} cannot be opened: {error.message}"
            raise InitError(text, hint=error.hint) from error
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        """Rebuild units and the tail."""
        self._units.load(self._writer)
        self._unpurged = tile_table.unpurged_units(self._writer)
        marks = [unit.sealed for unit in self._units.by_no.values()]
        unit_of, sealed_of = self._units.unit_of, self._units.sealed_of()
        rows = self._writer.execute("SELECT log_no, tables, sum FROM log ORDER BY log_no")
        for log_no, blob, kept in rows:
            check(f"log row {log_no}", kept, blob_sum(log_no, blob))
            marks.append(log_no)
            self._note_log_row(log_no, len(blob))
            # A row stays for the units that still need it; the others have it in tiles.
            needed_by = np.where(sealed_of < log_no, unit_of, NO_UNIT)
            self._tail.append(log_no, decode_log_row(blob), needed_by)
        # Log rows come and go, so their numbers are ours to keep from coming back.
        self._next_log_no = max(marks, default=0) + 1

    @property
    def generation(self) -> str:
        """See PointStore."""
        return self._generation

    # --- commit ----------------------------------------------------------------------------
    def commit(self, changes: Commit) -> None:
        """See PointStore."""
        placement = self._units.prepare(changes.series)
        tables: list[Table] = [*changes.points, *changes.segments]
        for table in tables:
            self._units.check(np.atleast_1d(table.series_no), placement)
        blob = encode_log_row(changes.points, changes.segments) if tables else b""
        log_no = self._next_log_no
        with self._write("committing to the store"):
            self._writer.executemany(
                "INSERT INTO unit VALUES(?,?,?,0)",
                [(u.unit_no, u.run_no, u.group_size) for u in placement.new_units],
            )
            catalogue.write_catalogue(self._writer, changes, placement.unit_of)
            if blob:
                row = (log_no, blob, blob_sum(log_no, blob))
                self._writer.execute("INSERT INTO log VALUES(?,?,?)", row)
            for deleted in changes.deleted:
                catalogue.delete_run(self._writer, deleted)
        self._units.adopt(placement)
        for deleted in changes.deleted:
            # After the commit: a reader that finds the tail empty then finds the run gone as well.
            # Log rows with points of the run go with the next purge.
            for unit_no in self._units.of_run(deleted.run_no):
                self._tail.drop(unit_no)
                self._unpurged.append(unit_no)
        if blob:
            self._next_log_no += 1
            self._note_log_row(log_no, len(blob))
            self._tail.append(log_no, tables, self._units.unit_of)
        self._wrote(len(blob))

    @contextlib.contextmanager
    def _write(self, what: str) -> Iterator[None]:
        """A write transaction; none begins after a sync failed."""
        if self._failure is not None:
            raise self._failure
        try:
            with write_transaction(self._writer, what):
                yield
        except StoreFailedError as error:
            self._failure = error
            raise

    def _wrote(self, n_bytes: int) -> None:
        try:
            self._wal.wrote(n_bytes)
        except StoreFailedError as error:
            self._failure = error
            raise

    def _note_log_row(self, log_no: int, n_bytes: int) -> None:
        self._log_rows.append((log_no, n_bytes))
        self._log_bytes += n_bytes

    def _forget_log_rows(self, keep_from: int) -> None:
        while self._log_rows and self._log_rows[0][0] < keep_from:
            self._log_bytes -= self._log_rows.popleft()[1]

    # --- catalogue -------------------------------------------------------------------------
    def runs(self) -> list[RunRow]:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_runs(connection)

    def find_run(self, workspace: str, project: str, name: str) -> RunRow | None:
        """See PointStore."""
        where = "workspace=? AND project=? AND name=?"
        with self._readers.transaction() as connection:
            found = catalogue.read_runs(connection, where, workspace, project, name)
        return found[0] if found else None

    def find_run_uid(self, run_uid: str) -> RunRow | None:
        """See PointStore."""
        with self._readers.transaction() as connection:
            found = catalogue.read_runs(connection, "run_uid=?", run_uid)
        return found[0] if found else None

    def find_writer(self, writer_id: str) -> int | None:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_writer_run(connection, writer_id)

    def find_deleted(self, identity: str) -> DeletedRun | None:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_deleted(connection, identity)

    def run_contents(
        self, run_no: int, *, with_series: bool = True, series_after: int = 0
    ) -> RunContents:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_contents(
                connection, run_no, with_series=with_series, series_after=series_after
            )

    def page(self, run_no: int, digest: str) -> bytes | None:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_page(connection, run_no, digest)

    def next_numbers(self) -> tuple[int, int, int]:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_next_numbers(connection)

    # --- points ----------------------------------------------------------------------------
    def read_points(
        self,
        series_no: int,
        *,
        env_no: int | None = None,
        step_range: tuple[int, int] | None = None,
    ) -> StoredPoints:
        """See PointStore."""
        unit = self._units.find(series_no)
        is_standard = unit is None or unit.is_standard
        keys = series_no if is_standard else env_no
        wanted = Filter(_sorted_keys(None if keys is None else [keys]), steps=step_range)
        rows = self._read(unit, wanted)
        env = rows.key
        if is_standard:
            env = np.zeros(len(rows), dtype=np.int64)
            if env_no not in (None, 0):
                rows, env = rows.take(slice(0, 0)), env[:0]
        return StoredPoints(env, rows.step, rows.rl_step, rows.time_ms, rows.value, rows.writer_no)

    def read_env_steps(
        self,
        series_no: int,
        *,
        env_nos: Sequence[int] | None = None,
        episode_range: tuple[int, int] | None = None,
        rl_step_range: tuple[int, int] | None = None,
        episodes: Sequence[int] | None = None,
    ) -> StoredEnvSteps:
        """See PointStore."""
        wanted = Filter(
            _sorted_keys(env_nos),
            rl_steps=rl_step_range,
            episodes=episode_range,
            episode_set=_sorted_keys(episodes),
        )
        rows = self._read(self._units.find(series_no), wanted)
        return StoredEnvSteps(
            env_no=rows.key,
            episode=rows.episode,
            generation=rows.generation,
            rl_step=rows.rl_step,
            step=rows.step,
            time_ms=rows.time_ms,
            value=rows.value,
            writer_no=rows.writer_no,
        )

    def outline(self, series_no: int, step_range: tuple[int, int]) -> Outline:
        """See PointStore. Tiles that are large and final have summaries, nothing else has."""
        unit = self._units.find(series_no)
        if unit is None:
            return pyramid_table.bare_outline([])
        entries = self._tail.snapshot(unit.unit_no)
        sealed, outline = tile_table.read_outline(
            self._readers, unit.unit_no, series_no, step_range
        )
        stretches = []
        for entry in entries:
            if entry.log_no > sealed and isinstance(entry.table, AcceptedPoints):
                step = entry.table.step[entry.table.series_no == series_no]
                stretches += [(int(step.min()), int(step.max()))] if len(step) else []
        return outline.joined(pyramid_table.bare_outline(stretches))

    def read_summaries(
        self, series_no: int, outline: Outline, level: int
    ) -> tuple[Int64Array, Buckets]:
        """See PointStore."""
        unit = self._units.find(series_no)
        unit_no = NO_UNIT if unit is None else unit.unit_no
        return tile_table.read_summaries(self._readers, unit_no, series_no, outline, level)

    def _read(self, unit: Unit | None, wanted: Filter) -> Rows:
        """Rows of a unit, sealed ones first; the tail is taken before the tiles (see above)."""
        if unit is None or wanted.asks_for_nothing:
            return concat_rows([])
        entries = self._tail.snapshot(unit.unit_no)
        sealed, parts = tile_table.read_tiles(self._readers, unit.unit_no, wanted)
        tables = [entry.table for entry in entries if entry.log_no > sealed]
        if tables:
            parts.append(tables_as_rows(tables, wanted))
        return concat_rows([part for part in parts if len(part)]).plain()

    def cuts(self, series_no: int) -> list[CutRow]:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_cuts(connection, series_no)

    # --- cursors and upkeep ----------------------------------------------------------------
    def heads(self, run_no: int, series_nos: Iterable[int] | None = None) -> dict[int, bytes]:
        """See PointStore."""
        with self._readers.transaction() as connection:
            return catalogue.read_heads(connection, run_no, series_nos)

    def tail(self, series_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        """See PointStore."""
        unit = self._units.find(series_no)
        if unit is None:
            return []
        tables = [entry.table for entry in self._tail.snapshot(unit.unit_no)]
        return [t for t in tables if bool(np.any(t.series_no == series_no))]

    def tails(self, run_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        """See PointStore."""
        return self._tail.run_tables(run_no)

    def due(self, *, now_s: float, everything: bool = False) -> list[SealUnit]:
        """See PointStore.

        A unit is due when its tail fills a tile of every group or is older than TAIL_AGE_S; the
        biggest also while all tails hold more than TAIL_BYTES_MAX, and the one that keeps the
        oldest log row also while the log holds more than LOG_BYTES_MAX.
        """
        tails = self._tail.units()
        excess = self._tail.nbytes - TAIL_BYTES_MAX
        chosen: dict[int, None] = {}
        by_size = sorted(tails, key=lambda no: tails[no].nbytes, reverse=True)
        for unit_no in by_size:
            if excess <= 0:
                break
            chosen[unit_no] = None
            excess -= tails[unit_no].nbytes
        if tails and self._log_bytes > LOG_BYTES_MAX:
            chosen[min(tails, key=lambda no: tails[no].first_log_no)] = None
        for unit_no in by_size:
            tail = tails[unit_no]
            if tail.since_s is None:
                tail.since_s = now_s
            is_old = now_s - tail.since_s >= TAIL_AGE_S
            if everything or is_old or self._is_full(self._units.by_no[unit_no], tail):
                chosen[unit_no] = None
        return [self._seal_unit(unit_no) for unit_no in chosen]

    def _is_full(self, unit: Unit, tail: UnitTail) -> bool:
        keys_count = tail.keys_span
        if unit.is_standard:
            keys_count = min(keys_count, UNIT_SERIES_COUNT)
        return tail.points_count >= due_points(keys_count, unit.group_size)

    def _seal_unit(self, unit_no: int) -> SealUnit:
        """The unit as the protocol names it: those of its series that have a tail."""
        unit = self._units.by_no[unit_no]
        return SealUnit(unit.run_no, tuple(_series_in(self._tail.snapshot(unit_no))))

    def seal(self, unit: SealUnit, heads: dict[int, bytes]) -> None:
        """See PointStore.

        A unit to which another of its series was committed since `due` is left as it is: the
        heads do not cover it. `due` names it again.
        """
        found = {self._units.find(series_no) for series_no in unit.series_nos}
        if len(found) != 1 or None in found:
            raise InternalError(f"series {unit.series_nos} are not one unit of this store")
        (ours,) = found
        assert ours is not None
        entries = self._tail.snapshot(ours.unit_no)
        if not heads.keys() >= set(_series_in(entries)):
            return
        with disk_errors("sealing"):
            change = tile_table.prepare(self._writer, ours, entries)
        sealed = entries[-1].log_no if entries else ours.sealed
        needed = self._tail.first_log_no(besides=(ours.unit_no,))
        keep_from = self._next_log_no if needed is None else needed
        with self._write("sealing"):
            # Log rows go first, so that tiles can take their pages.
            self._writer.execute("DELETE FROM log WHERE log_no < ?", (keep_from,))
            tile_table.write(self._writer, ours.unit_no, change)
            self._writer.execute(
                "UPDATE unit SET sealed=?, group_size=? WHERE unit_no=?",
                (sealed, change.group_size, ours.unit_no),
            )
            catalogue.write_heads(self._writer, heads)
        ours.sealed, ours.group_size = sealed, change.group_size
        self._tail.drop(ours.unit_no)
        self._forget_log_rows(keep_from)
        self._wrote(change.nbytes + sum(map(len, heads.values())))

    def purge(self) -> bool:
        """See PointStore. One short transaction a call."""
        if not self._unpurged:
            return False
        needed = self._tail.first_log_no(besides=())
        keep_from = self._next_log_no if needed is None else needed
        with self._write("purging a deleted run"):
            self._writer.execute("DELETE FROM log WHERE log_no < ?", (keep_from,))
            is_done = tile_table.purge(self._writer, self._unpurged[-1])
        self._forget_log_rows(keep_from)
        self._wrote(0)
        if is_done:
            self._unpurged.pop()
        return bool(self._unpurged)

    def improve(self) -> bool:
        """See PointStore. A few pyramids a call, in one short transaction."""
        if self._without_pyramid is None:
            with disk_errors("looking for tiles without a pyramid"):
                self._without_pyramid = tile_table.without_pyramid(self._writer)
        some = self._without_pyramid[-IMPROVED_TILES:]
        built = []
        with disk_errors("building pyramids"):
            for unit_no, tile_no, points_count in some:
                # A damaged tile stays as it is: `verify` names it. One of a deleted run is gone.
                with contextlib.suppress(StoreDamagedError):
                    if tile_table.is_there(self._writer, tile_no):
                        storeys = tile_table.build_pyramid(self._writer, tile_no, points_count)
                        built.append((unit_no, tile_no, storeys))
        if built:
            with self._write("building pyramids"):
                for unit_no, tile_no, storeys in built:
                    pyramid_table.write(self._writer, unit_no, tile_no, storeys)
            self._wrote(sum(len(s.records) for *_, storeys in built for s in storeys))
        del self._without_pyramid[len(self._without_pyramid) - len(some) :]
        return bool(self._without_pyramid)

    def close(self) -> None:
        """See PointStore. After a failed sync nothing is closed: SQLite would checkpoint."""
        if self._lock is None or self._failure is not None:
            return
        self._readers.close()
        writer: Any = getattr(self, "_writer", None)
        if writer is not None:
            with contextlib.suppress(sqlite3.Error):
                # A script, since `execute` would stop after the first page.
                writer.executescript(f"PRAGMA incremental_vacuum({GIVEN_BACK_PAGES})")
            writer.close()
        os.close(self._lock)
        self._lock = None


def _sorted_keys(keys: Sequence[int] | None) -> Any:
    return None if keys is None else np.unique(np.asarray(keys, dtype=np.int64))


def _series_in(entries: list[Entry]) -> list[int]:
    """The series that have rows in these entries, ascending."""
    if not entries:
        return []
    newest = entries[-1].table
    if isinstance(newest, AcceptedSegments):
        return [newest.series_no]
    column = np.concatenate(
        [e.table.series_no for e in entries if isinstance(e.table, AcceptedPoints)]
    )
    # A unit's series are near one another: marking them beats sorting the rows.
    low = int(column.min())
    has_rows = np.zeros(int(column.max()) - low + 1, dtype=bool)
    has_rows[column - low] = True
    found: list[int] = (np.flatnonzero(has_rows) + low).tolist()
    return found
