"""Points to buckets on one stable grid. Pure: columns in, columns out; no store, no clock.

A grid has a *level*: buckets are ``2**level`` wide, and bucket ``b`` holds every x with
``x >> level == b``. So edges are multiples of the width wherever the window starts, a series that
grows keeps its buckets, and two buckets of one level are exactly one of the next. That is what lets
summaries be made in pieces (blocks, lines, levels of a pyramid) at whatever level suits them and be
merged later: `summarise` makes them, `coarsen` and `join` merge them, the numbers are the same.

Only finite values are summarised; NaN and the infinities are counted apart, so that one infinity
does not blank a whole bucket. `Treatment.AGGREGATE` lets infinities take part instead.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from metrana_async.server.query.aggregate import (
    Partials,
    evaluate,
    fold,
    group,
    group_starts,
    group_sums,
)
from metrana_async.wire.model import FloatArray, Int64Array

FUNCTIONS: Final = ("mean", "min", "max", "first", "last", "sum", "std")
"""Value columns of a bucket; counts always come with them."""

_BLOCK_ROWS: Final = 1 << 18


class Treatment(enum.Enum):
    """What becomes of infinities."""

    BUCKET = "bucket"
    """Left out of the values and counted."""
    AGGREGATE = "aggregate"
    """They take part, as in every other aggregation."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Summaries on the grid of a level, one row a bucket that has points; columns are [k].

    Rows are ordered by (line, bucket) and unique in it.

    Attributes:
        line: int64; which curve a row is of (a series, an environment).
        bucket: int64; the bucket's number, its lower edge is ``bucket << level``.
        x_first, x_last: int64; x of the first and the last point in it.
        partials: of the values; first and last go by x, then by the order of the points.
    """

    level: int
    line: Int64Array
    bucket: Int64Array
    x_first: Int64Array
    x_last: Int64Array
    partials: Partials

    def __len__(self) -> int:
        return len(self.bucket)

    @property
    def x(self) -> Int64Array:
        """The lower edge of each bucket, int64 [k]."""
        return self.bucket << self.level

    @property
    def points_count(self) -> Int64Array:
        """Points in each bucket, NaN and infinities among them, int64 [k]."""
        return self.partials.count + self.partials.nan_count


def level_for(x_first: int, x_last: int, buckets_count: int) -> int:
    """The finest level that covers ``x_first..x_last`` with at most twice `buckets_count` buckets.

    There are more than `buckets_count` of them, unless the window has not so many numbers. A wider
    window never has a finer level.
    """
    level = 0
    while (x_last >> level) - (x_first >> level) + 1 > 2 * buckets_count:
        level += 1
    return level


def summarise(
    x: Int64Array,
    value: FloatArray,
    level: int,
    *,
    line: Int64Array | None = None,
    treatment: Treatment = Treatment.BUCKET,
) -> Buckets:
    """Summarise points at a level, in blocks of bounded size.

    Args:
        x: int64 [n], not decreasing within a line.
        value: float32 or float64 [n].
        level: of the grid.
        line: int64 [n], not decreasing; None = one line, 0.
        treatment: what becomes of infinities.
    """
    line = np.zeros(len(x), dtype=np.int64) if line is None else line
    if len(x) == 0:
        return _empty(level)
    blocks = []
    for start in range(0, len(x), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        blocks.append(_block(line[rows], x[rows], value[rows], level, treatment))
    return join(blocks)


def coarsen(buckets: Buckets, level: int) -> Buckets:
    """The same points at this level, which is not below the one they have."""
    assert level >= buckets.level, (level, buckets.level)
    if len(buckets) == 0:
        return replace(buckets, level=level)
    bucket = buckets.bucket >> (level - buckets.level)
    starts = group_starts(buckets.line, bucket)
    if len(starts) == len(buckets):
        return replace(buckets, level=level, bucket=bucket)
    return Buckets(
        level=level,
        line=buckets.line[starts],
        bucket=bucket[starts],
        x_first=buckets.x_first[starts],
        x_last=buckets.x_last[np.append(starts[1:], len(bucket)) - 1],
        partials=fold(buckets.partials, starts),
    )


def gather(parts: Sequence[Buckets]) -> Buckets:
    """One table of parts of one level and line that lie anywhere, but not within each other."""
    rows = concatenate(parts)
    order = np.argsort(rows.x_first, kind="stable")
    ordered = Buckets(
        level=rows.level,
        line=rows.line[order],
        bucket=rows.bucket[order],
        x_first=rows.x_first[order],
        x_last=rows.x_last[order],
        partials=rows.partials[order],
    )
    return coarsen(ordered, rows.level)


def join(parts: Sequence[Buckets]) -> Buckets:
    """One table of parts of one level that follow each other by (line, x); they may meet."""
    return coarsen(concatenate(parts), parts[0].level)


def concatenate(parts: Iterable[Buckets]) -> Buckets:
    """Rows of parts of one level, one part after the other, as they are."""
    parts = list(parts)
    names = [field.name for field in fields(Partials)]
    return Buckets(
        level=parts[0].level,
        line=np.concatenate([part.line for part in parts]),
        bucket=np.concatenate([part.bucket for part in parts]),
        x_first=np.concatenate([part.x_first for part in parts]),
        x_last=np.concatenate([part.x_last for part in parts]),
        partials=Partials(
            *(np.concatenate([getattr(part.partials, n) for part in parts]) for n in names)
        ),
    )


def points_as_rows(x: Int64Array, value: FloatArray) -> Buckets:
    """Every point as a row of its own at its own x, at level 0: nothing is left out of it.

    NaN and infinities stay in min, max, first and last, for a reader who wants the point itself.
    x repeats where points share one.
    """
    n = len(x)
    if n == 0:
        return _empty(0)
    partials = group(value, np.arange(n))
    return Buckets(0, np.zeros(n, dtype=np.int64), x, x, x, partials)


def value_columns(
    buckets: Buckets,
    functions: Iterable[str],
    *,
    treatment: Treatment = Treatment.BUCKET,
) -> dict[str, FloatArray]:
    """Each function's value for each row, float64 [k]; NaN (0 for a sum) where nothing takes part.

    Under `Treatment.BUCKET` only finite values take part.
    """
    partials = buckets.partials
    if treatment is Treatment.BUCKET:
        none = np.zeros(len(buckets), dtype=np.int64)
        partials = replace(partials, positive_inf_count=none, negative_inf_count=none)
    return {function: evaluate(partials, function) for function in functions}


def _block(
    line: Int64Array, x: Int64Array, value: FloatArray, level: int, treatment: Treatment
) -> Buckets:
    bucket = x >> level
    starts = group_starts(line, bucket)
    if treatment is Treatment.AGGREGATE:
        partials = group(value, starts)
    else:
        partials = group(np.where(np.isfinite(value), value, np.nan), starts)
        partials = replace(
            partials,
            nan_count=group_sums(np.isnan(value), starts),
            positive_inf_count=group_sums(value == np.inf, starts),
            negative_inf_count=group_sums(value == -np.inf, starts),
        )
    return Buckets(
        level=level,
        line=line[starts],
        bucket=bucket[starts],
        x_first=x[starts],
        x_last=x[np.append(starts[1:], len(x)) - 1],
        partials=partials,
    )


def _empty(level: int) -> Buckets:
    none, nothing = np.empty(0, dtype=np.int64), np.empty(0)
    partials = Partials(*(none,) * 4, *(nothing,) * 7)
    return Buckets(level, none, none, none, none, partials)
