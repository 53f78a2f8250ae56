"""Tiles in the database: choosing and reading them, and what a seal writes.

Tiles of a unit and group are in arrival order of their numbers. A tile of SMALL_TILE_POINTS or
more is never rewritten; smaller ones are the newest of their group, each less than half of the one
before it, so a seal that merges backwards rewrites a point only a few times in its life.
"""

# ruff: noqa: S608 — statements are put together from our own column names only

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metrana_async.errors import InternalError, NotFoundError, StoreDamagedError
from metrana_async.server.query.buckets import Buckets
from metrana_async.server.store.base import Outline
from metrana_async.server.store.sqlite import pyramid_table
from metrana_async.server.store.sqlite.checksums import check, tile_sum
from metrana_async.server.store.sqlite.connections import ReadPool
from metrana_async.server.store.sqlite.pyramid import Storey, build
from metrana_async.server.store.sqlite.pyramid_table import ChosenTile
from metrana_async.server.store.sqlite.rows import Filter, Rows, concat_rows, tables_as_rows
from metrana_async.server.store.sqlite.tail import Entry
from metrana_async.server.store.sqlite.tiles import (
    SMALL_TILE_POINTS,
    Tile,
    choose_group_size,
    decode_tile,
    encode_tiles,
    split_by_group,
)
from metrana_async.server.store.sqlite.units import ONE_GROUP, Unit
from metrana_async.wire.model import Int64Array

_FETCH_COUNT: Final = 64
_Packed = tuple[int, int, bytes, bytes]
"""tile_no, points_count and the two blobs."""
_EVERYTHING: Final = Filter()
_PURGE_TILES: Final = 64
_TILE_NUMBERS: Final = (
    "unit_no, group_no, points_count, key_low, key_high, rl_step_low, rl_step_high,"
    " episode_low, episode_high, step_low, step_high"
)
_IS_THERE: Final = "SELECT sealed, group_size FROM unit JOIN run USING(run_no) WHERE unit_no=?"
"""A unit without a run is a deleted run's: its tiles go, now or soon."""


# --- reading -------------------------------------------------------------------------------
def read_tiles(readers: ReadPool, unit_no: int, wanted: Filter) -> tuple[int, list[Rows]]:
    """The unit's sealed mark, and the wanted rows of its tiles as of that mark, in order.

    Small tiles are fetched in the transaction that reads the mark. Large ones are never rewritten,
    so they follow in transactions of their own, which keeps each short whatever the unit's size.

    Raises:
        NotFoundError: the run is deleted, before or meanwhile.
    """
    with readers.transaction() as connection:
        mark = connection.execute(_IS_THERE, (unit_no,)).fetchone()
        if mark is None:
            raise _deleted()
        sealed, group_size = mark
        if group_size is None:
            return sealed, []
        chosen = _choose(connection, unit_no, group_size, wanted)
        small = {
            tile.tile_no: fetch(connection, tile.tile_no)
            for tile in chosen
            if tile.points_count < SMALL_TILE_POINTS
        }
    parts = []
    for at in range(0, len(chosen), _FETCH_COUNT):
        some = chosen[at : at + _FETCH_COUNT]
        with readers.transaction() as connection:
            if connection.execute(_IS_THERE, (unit_no,)).fetchone() is None:
                raise _deleted()
            blobs = [small.get(t.tile_no) or fetch(connection, t.tile_no) for t in some]
        decoded = [
            decode_tile(tile.points_count, *blob, wanted)
            for tile, blob in zip(some, blobs, strict=True)
        ]
        parts += [rows for rows in decoded if rows is not None]
    return sealed, parts


def read_outline(
    readers: ReadPool, unit_no: int, series_no: int, steps: tuple[int, int]
) -> tuple[int, Outline]:
    """The unit's sealed mark, and what its tiles and their pyramids say of a STANDARD series.

    Raises:
        NotFoundError: the run is deleted.
    """
    key = np.array([series_no], dtype=np.int64)
    with readers.transaction() as connection:
        mark = connection.execute(_IS_THERE, (unit_no,)).fetchone()
        if mark is None:
            raise _deleted()
        sealed, group_size = mark
        if group_size is None:
            return sealed, pyramid_table.bare_outline([])
        tiles = _choose(connection, unit_no, group_size, Filter(key, steps=steps))
        return sealed, pyramid_table.read_outline(connection, unit_no, series_no, tiles)


def read_summaries(
    readers: ReadPool, unit_no: int, series_no: int, outline: Outline, level: int
) -> tuple[Int64Array, Buckets]:
    """See PointStore.

    Raises:
        NotFoundError: the run is deleted.
    """
    with readers.transaction() as connection:
        if connection.execute(_IS_THERE, (unit_no,)).fetchone() is None:
            raise _deleted()
        return pyramid_table.read_summaries(connection, unit_no, series_no, outline, level)


def _deleted() -> NotFoundError:
    return NotFoundError("the run was deleted while it was read")


def fetch(connection: sqlite3.Connection, tile_no: int) -> tuple[bytes, bytes]:
    """A tile's integers and values.

    Raises:
        StoreDamagedError: they are not what was written.
    """
    found: tuple[Any, ...] | None = connection.execute(
        f"SELECT {_TILE_NUMBERS}, integers, value, sum FROM tile WHERE tile_no=?", (tile_no,)
    ).fetchone()
    if found is None:
        raise InternalError(f"tile {tile_no} is gone while it is read")
    *numbers, integers, value, kept = found
    check(f"tile {tile_no}", kept, tile_sum(tuple(numbers), integers, value))
    return integers, value


def _choose(
    connection: sqlite3.Connection, unit_no: int, group_size: int, wanted: Filter
) -> list[ChosenTile]:
    """The tiles that may hold wanted rows, in order; reads the index only."""
    limited = list(wanted.ranges())
    keys = wanted.keys
    conditions, values = ["unit_no=?"], [unit_no]
    if keys is not None:
        limited.append(("key", (int(keys[0]), int(keys[-1]))))
        conditions.append("group_no BETWEEN ? AND ?")
        values += [int(keys[0]) // group_size, int(keys[-1]) // group_size]
    for name, (low, high) in limited:
        conditions.append(f"{name}_low <= ? AND {name}_high >= ?")
        values += [high, low]
    found: list[Any] = connection.execute(
        "SELECT tile_no, points_count, step_low, step_high, key_low, key_high,"
        " episode_low, episode_high"
        " FROM tile INDEXED BY tile_bounds"
        f" WHERE {' AND '.join(conditions)}",
        values,
    ).fetchall()
    for held, at in ((keys, 4), (wanted.episode_set, 6)):
        if held is not None and len(held) > 1 and found:
            low, high = np.array([row[at : at + 2] for row in found], dtype=np.int64).T
            holds = np.searchsorted(held, low) < np.searchsorted(held, high, "right")
            found = [found[i] for i in np.flatnonzero(holds)]
    return sorted(ChosenTile(*row[:4]) for row in found)


# --- sealing -------------------------------------------------------------------------------
@dataclass(slots=True)
class TileChange:
    """What a seal does to a unit's tiles."""

    group_size: int | None
    removed: list[int]
    tiles: list[Tile]

    @property
    def nbytes(self) -> int:
        """Bytes of the new tiles."""
        storeys = sum(len(s.records) for t in self.tiles for s in t.storeys)
        return storeys + sum(len(t.integers) + len(t.value) for t in self.tiles)


def prepare(connection: sqlite3.Connection, unit: Unit, entries: list[Entry]) -> TileChange:
    """Encode a unit's tail, merged with the small tiles it follows. Writes nothing."""
    rows = tables_as_rows([entry.table for entry in entries], _EVERYTHING, by_key=True)
    group_size = unit.group_size
    if len(rows) == 0:
        return TileChange(group_size, [], [])
    if group_size is None:
        keys_count = int(np.count_nonzero(np.diff(rows.key))) + 1
        group_size = choose_group_size(len(rows), keys_count)
    small: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for group_no, tile_no, n in connection.execute(
        "SELECT group_no, tile_no, points_count FROM tile INDEXED BY tile_small"
        f" WHERE unit_no=? AND points_count < {SMALL_TILE_POINTS} ORDER BY tile_no",
        (unit.unit_no,),
    ):
        small[group_no].append((tile_no, n))
    change = TileChange(group_size, [], [])
    for group_no, fresh in split_by_group(rows, group_size):
        older, count = small[group_no], len(fresh)
        parts = [fresh]
        while older and older[-1][1] <= 2 * count:
            tile_no, n = older.pop()
            try:
                merged = decode_tile(n, *fetch(connection, tile_no), _EVERYTHING)
            except StoreDamagedError:
                break  # it stays as it is; what comes behind it must not wait for ever
            assert merged is not None
            parts.append(merged)
            change.removed.append(tile_no)
            count += n
        joined = concat_rows(parts[::-1]).sorted_by_key()
        change.tiles += encode_tiles(group_no, joined, is_standard=unit.is_standard)
    return change


def write(connection: sqlite3.Connection, unit_no: int, change: TileChange) -> None:
    """Apply a change inside the caller's transaction."""
    connection.executemany("DELETE FROM tile WHERE tile_no=?", ((n,) for n in change.removed))
    for tile in change.tiles:
        tile_no = connection.execute(
            "INSERT INTO tile VALUES(NULL,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", _tile_values(unit_no, tile)
        ).lastrowid
        assert tile_no is not None
        pyramid_table.write(connection, unit_no, tile_no, tile.storeys)


def _tile_values(unit_no: int, tile: Tile) -> tuple[Any, ...]:
    numbers = (unit_no, tile.group_no, tile.points_count, *tile.bounds)
    return (*numbers, tile.integers, tile.value, tile_sum(numbers, tile.integers, tile.value))


def without_pyramid(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """(unit_no, tile_no, points_count) of tiles that a version without pyramids wrote."""
    return connection.execute(
        "SELECT unit_no, tile_no, points_count FROM tile INDEXED BY tile_bounds"
        " WHERE unit_no IN (SELECT unit_no FROM unit JOIN run USING(run_no) WHERE group_size=?)"
        " AND points_count >= ? AND NOT EXISTS (SELECT 1 FROM pyramid"
        " WHERE pyramid.unit_no=tile.unit_no AND depth=0 AND pyramid.tile_no=tile.tile_no)",
        (ONE_GROUP, SMALL_TILE_POINTS),
    ).fetchall()


def is_there(connection: sqlite3.Connection, tile_no: int) -> bool:
    """Whether a tile of this number exists."""
    found = connection.execute("SELECT 1 FROM tile WHERE tile_no=?", (tile_no,))
    return found.fetchone() is not None


def build_pyramid(connection: sqlite3.Connection, tile_no: int, points_count: int) -> list[Storey]:
    """The pyramid of a tile of STANDARD series, made of its points.

    Raises:
        StoreDamagedError: the tile is not what was written.
    """
    rows = decode_tile(points_count, *fetch(connection, tile_no), _EVERYTHING)
    assert rows is not None
    return build(rows)


def purge(connection: sqlite3.Connection, unit_no: int) -> bool:
    """Delete some tiles of a deleted run's unit, and after the last one the unit; True when done.

    Inside the caller's transaction.
    """
    some = "SELECT tile_no FROM tile WHERE unit_no=?1 ORDER BY tile_no LIMIT ?2"
    asked = (unit_no, _PURGE_TILES)
    connection.execute(f"DELETE FROM pyramid WHERE unit_no=?1 AND tile_no IN ({some})", asked)
    done = connection.execute(f"DELETE FROM tile WHERE tile_no IN ({some})", asked)
    if done.rowcount == _PURGE_TILES:
        return False
    connection.execute("DELETE FROM unit WHERE unit_no=?", (unit_no,))
    return True


def unpurged_units(connection: sqlite3.Connection) -> list[int]:
    """Units that deleted runs have left."""
    found = connection.execute("SELECT unit_no FROM unit JOIN deleted_run USING(run_no)")
    return [unit_no for (unit_no,) in found]
