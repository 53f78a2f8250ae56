"""Pyramids: what a chart needs of a tile's points, summarised at a few widths. Pure.

The points of one key are summarised on the grid of `query.buckets`, whose buckets nest: those of a
chart, which are as wide or wider, are made of whole ones of a pyramid and are what the points would
give. The finest storey has about BLOCK_POINTS points a bucket, each storey above is 16 times
coarser; storeys are counted from the coarsest, which every pyramid has.

Of a key that does not strictly rise by step within a tile only the points tell what is visible: it
has one row that counts nothing and says between which steps they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from metrana_async.server.query import buckets as grid
from metrana_async.server.query.aggregate import Partials, group_starts
from metrana_async.server.query.buckets import Buckets
from metrana_async.server.store.sqlite.codec import pack_records, unpack_records
from metrana_async.server.store.sqlite.rows import Rows

BLOCK_POINTS: Final = 256
STOREY_LEVELS: Final = 4
_STOREYS_MAX: Final = 3
_POINTS_PER_ROW_MIN: Final = 64
"""Where buckets hold fewer, the points are read about as fast and the bytes are not worth it."""
_LEVEL_MAX: Final = 62
_PLAIN_ROWS: Final = 16
"""A storey of so few rows is kept as it is: thousands of them are then read as one array."""

_PARTIALS: Final = tuple(field.name for field in fields(Partials))
_COUNTS: Final = tuple(name for name in _PARTIALS if name.endswith("count"))
_VALUES: Final = tuple(name for name in _PARTIALS if not name.endswith("count"))
_PLACES: Final = ("key", "edge", "x_first", "x_last")
RECORD: Final[np.dtype[Any]] = np.dtype(
    [(name, "<i8") for name in (*_PLACES, *_COUNTS)] + [(name, "<f8") for name in _VALUES]
)
"""A row of a storey; `edge` is the lower edge of its bucket."""

Records = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Storey:
    """One storey as stored: rows ordered by (key, step), packed."""

    depth: int
    level: int
    records: bytes


def build(rows: Rows) -> list[Storey]:
    """The pyramid of a tile of STANDARD series, coarsest storey first; `rows` is sorted by key."""
    is_rising = _keys_rise(rows)
    rising = rows if is_rising.all() else rows.take(is_rising)
    stored = [(_LEVEL_MAX, _bare(rows, is_rising))] if not len(rising) else []
    if len(rising):
        made = grid.summarise(rising.step, rising.value, _level_of(rising), line=rising.key)
        storeys = [made]
        while len(storeys) < _STOREYS_MAX and made.level + STOREY_LEVELS <= _LEVEL_MAX:
            made = grid.coarsen(made, made.level + STOREY_LEVELS)
            if 2 * len(made) > len(storeys[-1]):
                break
            storeys.append(made)
        if len(storeys[0]) * _POINTS_PER_ROW_MIN > len(rising):
            # Too dear: nothing of the tile rises then, as far as a reader is concerned.
            stored = [(_LEVEL_MAX, _bare(rows, np.zeros(len(rows), dtype=bool)))]
        else:
            stored = [(storey.level, _to_records(storey)) for storey in reversed(storeys)]
            stored[0] = stored[0][0], np.concatenate([stored[0][1], _bare(rows, is_rising)])
    return [Storey(depth, level, _pack(of)) for depth, (level, of) in enumerate(stored)]


def unpack(blobs: Sequence[bytes]) -> tuple[Records, npt.NDArray[np.int64]]:
    """The rows of several storeys, one behind the other, and how many are of each."""
    plain = [blob[1:] if blob[:1] == b"\0" else unpack_records(blob[1:]) for blob in blobs]
    counts = np.array([len(raw) // RECORD.itemsize for raw in plain], dtype=np.int64)
    return np.frombuffer(b"".join(plain), dtype=RECORD), counts


def to_buckets(records: Records, level: int) -> Buckets:
    """Rows as they are on the grid of a level, which is none below their own; line 0."""
    columns: dict[str, Any] = {
        name: np.ascontiguousarray(records[name]) for name in RECORD.names or ()
    }
    return Buckets(
        level=level,
        line=np.zeros(len(records), dtype=np.int64),
        bucket=columns["edge"] >> level,
        x_first=columns["x_first"],
        x_last=columns["x_last"],
        partials=Partials(**{name: columns[name] for name in _PARTIALS}),
    )


def points_count(records: Records) -> npt.NDArray[np.int64]:
    """Points that each row summarises, int64; 0 where it only says that there are some."""
    counted: npt.NDArray[np.int64] = sum(
        (records[name] for name in _COUNTS), np.zeros(len(records), dtype=np.int64)
    )
    return counted


def agree(kept: Sequence[Storey], built: Sequence[Storey]) -> bool:
    """Whether two pyramids say the same, up to what another machine rounds otherwise."""
    if [(s.depth, s.level) for s in kept] != [(s.depth, s.level) for s in built]:
        return False
    (left, left_counts), (right, right_counts) = (
        unpack([s.records for s in of]) for of in (kept, built)
    )
    if left_counts.tolist() != right_counts.tolist():
        return False
    exact = (*_PLACES, *_COUNTS, "min", "max", "first", "last")
    if not all(np.array_equal(left[n], right[n], equal_nan=True) for n in exact):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.fmax(np.abs(left["min"]), np.abs(left["max"]))
        near = {"mean": size, "total": left["finite_count"] * size}
        near["m2"] = near["total"] * size
        return all(
            bool(np.all(~(np.abs(left[name] - right[name]) > 1e-9 * room)))
            for name, room in near.items()
        )


def _keys_rise(rows: Rows) -> npt.NDArray[np.bool_]:
    """Of each row whether its key strictly rises by step, bool [n]."""
    is_back = (rows.key[1:] == rows.key[:-1]) & (rows.step[1:] <= rows.step[:-1])
    if not is_back.any():
        return np.ones(len(rows), dtype=bool)
    return ~np.isin(rows.key, rows.key[1:][is_back])


def _bare(rows: Rows, is_rising: npt.NDArray[np.bool_]) -> Records:
    """A row that counts nothing for each key that does not rise."""
    key, step = rows.key[~is_rising], rows.step[~is_rising]
    starts = group_starts(key)
    records = np.zeros(len(starts), dtype=RECORD)
    if len(starts):
        records["key"] = key[starts]
        records["x_first"] = np.minimum.reduceat(step, starts)
        records["x_last"] = np.maximum.reduceat(step, starts)
    return records


def _level_of(rows: Rows) -> int:
    """The level at which buckets hold about BLOCK_POINTS points, over all keys."""
    starts = group_starts(rows.key)
    ends = np.append(starts[1:], len(rows)) - 1
    # In float64: the spans of several keys may add up to more than an integer holds.
    span = float(np.sum(rows.step[ends].astype(np.float64) - rows.step[starts]) + len(starts))
    return min(max(int(math.log2(BLOCK_POINTS * span / len(rows))), 0), _LEVEL_MAX)


def _to_records(made: Buckets) -> Records:
    records = np.empty(len(made), dtype=RECORD)
    places = (made.line, made.x, made.x_first, made.x_last)
    for name, column in zip(_PLACES, places, strict=True):
        records[name] = column
    for name in _PARTIALS:
        records[name] = getattr(made.partials, name)
    return records


def _pack(records: Records) -> bytes:
    if len(records) <= _PLAIN_ROWS:
        return b"\0" + records.tobytes()
    return b"\1" + pack_records(records)
