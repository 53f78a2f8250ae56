"""Pyramids in the database: written with their tiles, read without them.

A row is one storey of one tile. Rows of a unit and depth lie together, so that the coarsest storeys
of thousands of tiles are read in one sweep. Only tiles that are never rewritten have a pyramid.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from metrana_async.server.query.buckets import Buckets
from metrana_async.server.store.base import Outline
from metrana_async.server.store.sqlite import pyramid
from metrana_async.server.store.sqlite.checksums import check, storey_sum
from metrana_async.server.store.sqlite.pyramid import Records, Storey
from metrana_async.wire.model import Int64Array

_OF_A_UNIT: Final = (
    "SELECT tile_no, level, records, sum FROM pyramid"
    " WHERE unit_no=? AND depth=? AND tile_no BETWEEN ? AND ? ORDER BY tile_no"
)


class ChosenTile(NamedTuple):
    """What the index says of a tile; the steps are those of all its series."""

    tile_no: int
    points_count: int
    step_low: int
    step_high: int


def write(
    connection: sqlite3.Connection, unit_no: int, tile_no: int, storeys: Sequence[Storey]
) -> None:
    """Add a tile's pyramid inside the caller's transaction."""
    rows = [((unit_no, s.depth, tile_no, s.level), s.records) for s in storeys]
    connection.executemany(
        "INSERT INTO pyramid VALUES(?,?,?,?,?,?)",
        [(*numbers, records, storey_sum(numbers, records)) for numbers, records in rows],
    )


def fetch(connection: sqlite3.Connection, unit_no: int, tile_no: int) -> list[Storey]:
    """A tile's pyramid, coarsest storey first; empty where it has none.

    Raises:
        StoreDamagedError: it is not what was written.
    """
    found = connection.execute(
        "SELECT depth, level, records, sum FROM pyramid"
        " WHERE unit_no=? AND depth IN (0, 1, 2) AND tile_no=? ORDER BY depth",
        (unit_no, tile_no),
    ).fetchall()
    for depth, level, records, kept in found:
        _check((unit_no, depth, tile_no, level), records, kept)
    return [Storey(depth, level, records) for depth, level, records, _ in found]


def bare_outline(stretches: Sequence[tuple[int, int]]) -> Outline:
    """Stretches of which nothing but their first and last step is known."""
    low, high = np.array(stretches, dtype=np.int64).reshape(-1, 2).T
    none = np.zeros(len(low), dtype=np.int64)
    return Outline(low, high, none, none - 1, none)


def read_outline(
    connection: sqlite3.Connection, unit_no: int, series_no: int, tiles: Sequence[ChosenTile]
) -> Outline:
    """What the pyramids of these tiles say of a series; those that have none are bare."""
    known, levels, records, row_tile = _sweep(connection, unit_no, 0, [t.tile_no for t in tiles])
    mine = records["key"] == series_no
    records, row_tile = records[mine], row_tile[mine]
    starts = np.flatnonzero(np.diff(row_tile, prepend=-1))
    of_tile = row_tile[starts]
    without = set(known.tolist())
    bare = bare_outline([(t.step_low, t.step_high) for t in tiles if t.tile_no not in without])
    if not len(starts):
        return bare
    summarised = Outline(
        low=np.minimum.reduceat(records["x_first"], starts),
        high=np.maximum.reduceat(records["x_last"], starts),
        count=np.add.reduceat(pyramid.points_count(records), starts),
        place=known[of_tile],
        level=levels[of_tile],
    )
    return summarised.joined(bare)


def read_summaries(
    connection: sqlite3.Connection, unit_no: int, series_no: int, outline: Outline, level: int
) -> tuple[Int64Array, Buckets]:
    """The places that have rows at or below the level, and their rows at it, in no order."""
    # Coarsest that will do: each storey down is finer by the same number of levels.
    depth = np.maximum(-(-(outline.level - level) // pyramid.STOREY_LEVELS), 0)
    places, parts = [], []
    for wanted in np.unique(depth).tolist():
        asked = outline.place[depth == wanted].tolist()
        known, _, records, row_tile = _sweep(connection, unit_no, wanted, asked)
        mine = records["key"] == series_no
        places.append(known[np.unique(row_tile[mine])])
        parts.append(records[mine])
    records = np.concatenate([*parts, np.empty(0, dtype=pyramid.RECORD)])
    found = np.concatenate([*places, np.empty(0, dtype=np.int64)])
    return found, pyramid.to_buckets(records, level)


def _sweep(
    connection: sqlite3.Connection, unit_no: int, depth: int, tile_nos: Collection[int]
) -> tuple[Int64Array, Int64Array, Records, Int64Array]:
    """Tiles that have a storey of this depth, its level, its rows, and of each row which tile's."""
    wanted = set(tile_nos)
    found: list[Any] = []
    if wanted:
        rows = connection.execute(_OF_A_UNIT, (unit_no, depth, min(wanted), max(wanted)))
        found = [row for row in rows if row[0] in wanted]
    for tile_no, level, blob, kept in found:
        _check((unit_no, depth, tile_no, level), blob, kept)
    records, counts = pyramid.unpack([row[2] for row in found])
    numbers = np.array([row[:2] for row in found], dtype=np.int64).reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1], records, np.repeat(np.arange(len(found)), counts)


def _check(numbers: tuple[int, ...], records: bytes, kept: int) -> None:
    check(f"the pyramid of tile {numbers[2]}", kept, storey_sum(numbers, records))
