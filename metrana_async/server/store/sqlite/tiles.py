"""Tiles: about 32k sorted points each, and where the borders between them lie. Pure.

A unit's keys (environments or series) fall into groups of `group_size` neighbours; a tile holds
points of one group. So one environment's series is read from the tiles of its group alone, and a
tile is still large enough to pack well: 3,072-point tiles take 4.0 bytes a point, these 3.45.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metrana_async.server.store.sqlite.codec import (
    IntegerReader,
    decode_floats,
    encode_floats,
    encode_integers,
)
from metrana_async.server.store.sqlite.pyramid import Storey, build
from metrana_async.server.store.sqlite.rows import INTEGER_NAMES, Filter, Rows
from metrana_async.wire.model import Int64Array

TILE_POINTS: Final = 32_768
SMALL_TILE_POINTS: Final = TILE_POINTS // 2
"""A tile below this is merged with what follows it, sooner or later."""
GROUP_SIZES: Final = (16, 1_024)
POINTS_PER_KEY_MAX: Final = 2_048
"""More of one key in a tile makes its neighbours dearer to read and saves nothing."""
UNSEALED_POINTS_MAX: Final = 16 * TILE_POINTS


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile as stored. `bounds` is (low, high) of key, rl_step, episode and step, flattened."""

    group_no: int
    points_count: int
    bounds: tuple[int, ...]
    integers: bytes
    value: bytes
    storeys: list[Storey]


def choose_group_size(points_count: int, keys_count: int) -> int:
    """Power of two so that a group of a first seal of this size fills about one tile."""
    per_key = min(max(points_count // max(keys_count, 1), 1), POINTS_PER_KEY_MAX)
    size = GROUP_SIZES[0]
    while size < GROUP_SIZES[1] and 2 * size * per_key <= TILE_POINTS + TILE_POINTS // 2:
        size *= 2
    return size


def due_points(keys_count: int, group_size: int | None) -> int:
    """How many unsealed points of a unit fill a tile of every group."""
    if group_size is None:
        wanted = keys_count * POINTS_PER_KEY_MAX
    else:
        wanted = -(-keys_count // group_size) * TILE_POINTS
    return min(max(wanted, TILE_POINTS), UNSEALED_POINTS_MAX)


def split_by_group(rows: Rows, group_size: int) -> Iterator[tuple[int, Rows]]:
    """Group number and rows of each group; `rows` is sorted by key and not empty."""
    group = rows.key // group_size
    cuts = np.flatnonzero(group[1:] != group[:-1]) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    for low, high in itertools.pairwise(edges):
        yield int(group[low]), rows.take(slice(low, high))


def encode_tiles(group_no: int, rows: Rows, *, is_standard: bool) -> list[Tile]:
    """Cut sorted rows of one group into equal tiles of about TILE_POINTS.

    Those of STANDARD series get a pyramid, unless they are small and will be merged.
    """
    tiles_count = max(1, round(len(rows) / TILE_POINTS))
    edges = [len(rows) * i // tiles_count for i in range(tiles_count + 1)]
    return [
        _encode_tile(group_no, rows.take(slice(low, high)), is_standard=is_standard)
        for low, high in itertools.pairwise(edges)
    ]


def _encode_tile(group_no: int, rows: Rows, *, is_standard: bool) -> Tile:
    has_pyramid = is_standard and len(rows) >= SMALL_TILE_POINTS
    limited = (rows.key, rows.rl_step, rows.episode, rows.step)
    return Tile(
        group_no=group_no,
        points_count=len(rows),
        bounds=tuple(int(edge) for c in limited for edge in (c.min(), c.max())),
        integers=encode_integers(rows.integers()),
        value=encode_floats(rows.value),
        storeys=build(rows) if has_pyramid else [],
    )


def decode_tile(points_count: int, integers: bytes, value: bytes, wanted: Filter) -> Rows | None:
    """The wanted rows of a tile, or None. Columns behind the first that excludes all stay packed.

    Columns may be read-only views.
    """
    reader = IntegerReader(integers, points_count)
    decoded: dict[str, Int64Array] = {}
    low, high = 0, points_count
    keep = None
    if wanted.keys is not None:
        key = reader.column(0)
        # Sorted by key: what lies outside the first and last wanted one is never decoded.
        low, high = map(int, np.searchsorted(key, [wanted.keys[0], wanted.keys[-1] + 1]))
        if low == high:
            return None
        decoded["key"] = key[low:high]
        if len(wanted.keys) > 1:
            keep = wanted.has_key(decoded["key"])
    for name, limits in wanted.ranges():
        column = decoded[name] = reader.column(INTEGER_NAMES.index(name), low, high)
        inside = wanted.has(name, column, limits)
        keep = inside if keep is None else keep & inside
    if keep is not None and not keep.any():
        return None
    columns: list[Any] = [
        decoded[name] if name in decoded else reader.column(i, low, high)
        for i, name in enumerate(INTEGER_NAMES)
    ]
    columns.append(decode_floats(value, points_count, low, high))
    rows = Rows(*columns)
    return rows if keep is None or keep.all() else rows.take(keep)
