"""Statistics over columns of values. Pure: columns in, columns out.

`Partials` are mergeable summaries, one row a group (a whole series, a bucket, an rl_step): whatever
is summarised in pieces — chunks, sealed and unsealed parts, shards — gives the same numbers after
`merge`. Deviations are kept (Welford, merged after Chan), not squares: at a mean of 1e9 a sum of
squares has no digits left for a standard deviation of 1.

NaN is skipped and counted; infinities take part. They are counted apart, because a mean over two
equal infinities is that infinity while the running formulas would say NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from metrana_async.errors import InvalidQueryError, UnsupportedAggregationError
from metrana_async.wire.model import FloatArray, Int64Array

MERGE_FUNCTIONS: Final = ("min", "max", "first", "last")
"""What a `log_distributed` series offers; its points may overlap, so counts and means mislead."""

FUNCTIONS: Final = ("count", "sum", "mean", "std", *MERGE_FUNCTIONS)
"""What every other series offers, besides quantiles."""

_CHUNK_ROWS: Final = 1 << 16
_PERCENTILE: Final = re.compile(r"p(\d+(?:\.\d+)?)")
_QUANTILE: Final = re.compile(r"quantile:(.+)")


@dataclass(frozen=True, slots=True)
class Partials:
    """Mergeable summaries of k groups; every column is [k]. Values are float64.

    Attributes:
        finite_count, nan_count, positive_inf_count, negative_inf_count: values by kind, int64.
        total: sum of the finite values.
        mean: mean of the finite values; 0 where there are none.
        m2: sum of squared deviations of the finite values from `mean`.
        min, max: over everything but NaN; NaN where there is nothing.
        first, last: the first and last value that is not NaN; NaN where there is none.
    """

    finite_count: Int64Array
    nan_count: Int64Array
    positive_inf_count: Int64Array
    negative_inf_count: Int64Array
    total: FloatArray
    mean: FloatArray
    m2: FloatArray
    min: FloatArray
    max: FloatArray
    first: FloatArray
    last: FloatArray

    def __len__(self) -> int:
        return len(self.total)

    def __getitem__(self, rows: slice | Int64Array) -> Partials:
        return Partials(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def count(self) -> Int64Array:
        """Values that take part: everything but NaN, int64 [k]."""
        return self.finite_count + self.positive_inf_count + self.negative_inf_count


def check_function(function: str, *, is_merge: bool) -> None:
    """Refuse an aggregation the series does not offer.

    Raises:
        UnsupportedAggregationError: not offered for this kind of series; names those that are.
        InvalidQueryError: a quantile outside 0..1.
    """
    if is_merge and function not in MERGE_FUNCTIONS:
        raise UnsupportedAggregationError(
            f"{function!r} is not offered over a log_distributed series, which offers "
            f"{', '.join(MERGE_FUNCTIONS)}",
            hint="a metric that needs mean, sum, std, count or quantiles over many writers is "
            "logged with log_rl_episode and explicit episodes (the RL merge path)",
        )
    if function not in FUNCTIONS and quantile_of(function) is None:
        raise UnsupportedAggregationError(
            f"{function!r} is no aggregation; offered are {', '.join(FUNCTIONS)}, median, "
            "p0..p100 (as in p95) and quantile:0..1 (as in quantile:0.95)"
        )


def quantile_of(function: str) -> float | None:
    """The quantile in 0..1 that a function name means, or None when it means none.

    Raises:
        InvalidQueryError: it is a quantile, but not one between 0 and 1.
    """
    if function == "median":
        return 0.5
    if match := _PERCENTILE.fullmatch(function):
        quantile = float(match[1]) / 100
    elif match := _QUANTILE.fullmatch(function):
        try:
            quantile = float(match[1])
        except ValueError as error:
            raise InvalidQueryError(f"{match[1]!r} in {function!r} is not a number") from error
    else:
        return None
    if not 0 <= quantile <= 1:
        raise InvalidQueryError(
            f"{function!r} asks for the quantile {quantile:g}, which is not within 0..1",
            hint="p95 and quantile:0.95 are the same",
        )
    return quantile


def aggregate(value: FloatArray, function: str) -> float:
    """One number over all values, in their order.

    Over nothing (or only NaN): count and sum are 0, everything else is NaN.

    Args:
        value: float32 or float64 [n].
        function: a name that `check_function` accepts.
    """
    quantile = quantile_of(function)
    if quantile is not None:
        return quantile_linear(value, quantile)
    return float(evaluate(summarise(value), function)[0])


def summarise(value: FloatArray) -> Partials:
    """Summarise a whole column as one group ([n] to k = 1), in chunks that are merged."""
    if len(value) == 0:
        return _nothing()
    partials = group(value, np.arange(0, len(value), _CHUNK_ROWS))
    while len(partials) > 1:
        paired = len(partials) // 2 * 2
        merged = merge(partials[0:paired:2], partials[1:paired:2])
        partials = _join(merged, partials[paired:])
    return partials


def group(value: FloatArray, starts: Int64Array) -> Partials:
    """Summarise contiguous groups.

    Args:
        value: float32 or float64 [n], n > 0, group after group.
        starts: int64 [k], strictly increasing from 0: where each group begins; none is empty.
    """
    value = np.asarray(value, dtype=np.float64)
    is_finite, is_nan = np.isfinite(value), np.isnan(value)
    sizes = np.diff(starts, append=len(value))
    n = np.add.reduceat(is_finite, starts, dtype=np.int64)
    finite = np.where(is_finite, value, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduceat(finite, starts)
        # Divided first: a mean of numbers near the largest double must not overflow.
        mean = np.add.reduceat(finite / np.repeat(np.maximum(n, 1), sizes), starts)
        deviation = np.where(is_finite, value - np.repeat(mean, sizes), 0.0)
        # What rounding left in the mean; where even that overflows, the mean stands as it is.
        shift = np.add.reduceat(deviation, starts) / np.maximum(n, 1)
        shift = np.where(np.isfinite(shift), shift, 0.0)
        mean = mean + shift
        m2 = np.add.reduceat(deviation * deviation, starts) - n * shift * shift
    row = np.arange(len(value))
    first_at = np.minimum.reduceat(np.where(is_nan, len(value), row), starts)
    last_at = np.maximum.reduceat(np.where(is_nan, -1, row), starts)
    # A group of NaN only points outside itself; any of its values is the NaN to show.
    return Partials(
        finite_count=n,
        nan_count=np.add.reduceat(is_nan, starts, dtype=np.int64),
        positive_inf_count=np.add.reduceat(value == np.inf, starts, dtype=np.int64),
        negative_inf_count=np.add.reduceat(value == -np.inf, starts, dtype=np.int64),
        total=total,
        mean=mean,
        m2=np.maximum(m2, 0.0),
        min=np.fmin.reduceat(value, starts),
        max=np.fmax.reduceat(value, starts),
        first=value[np.where(last_at < 0, starts, np.minimum(first_at, len(value) - 1))],
        last=value[np.where(last_at < 0, starts, last_at)],
    )


def merge(left: Partials, right: Partials) -> Partials:
    """Merge groups row by row; `right` comes after `left` (only first and last depend on it)."""
    n = left.finite_count + right.finite_count
    share = right.finite_count / np.maximum(n, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        delta = right.mean - left.mean
        # Near each other, the step from one mean is exact to the last digit; far apart, only
        # weighing both cannot overflow.
        weighed = left.mean * (1 - share) + right.mean * share
        is_near = np.abs(delta) < np.abs(left.mean)
        mean = np.where(is_near, left.mean + delta * share, weighed)
        m2 = left.m2 + right.m2 + delta * delta * left.finite_count * share
        total = left.total + right.total
    is_left_empty, is_right_empty = left.finite_count == 0, right.finite_count == 0
    return Partials(
        finite_count=n,
        nan_count=left.nan_count + right.nan_count,
        positive_inf_count=left.positive_inf_count + right.positive_inf_count,
        negative_inf_count=left.negative_inf_count + right.negative_inf_count,
        total=total,
        mean=np.where(is_left_empty, right.mean, np.where(is_right_empty, left.mean, mean)),
        m2=np.where(is_left_empty, right.m2, np.where(is_right_empty, left.m2, m2)),
        min=np.fmin(left.min, right.min),
        max=np.fmax(left.max, right.max),
        first=np.where(np.isnan(left.first), right.first, left.first),
        last=np.where(np.isnan(right.last), left.last, right.last),
    )


def group_starts(*keys: Int64Array) -> Int64Array:
    """Where groups of rows with equal keys begin, int64 [k]; empty for no rows.

    `keys` are int64 [n] each; rows of a group lie together.
    """
    if len(keys[0]) == 0:
        return np.empty(0, dtype=np.int64)
    changes = np.zeros(len(keys[0]) - 1, dtype=bool)
    for key in keys:
        changes |= key[1:] != key[:-1]
    return np.flatnonzero(np.concatenate(([True], changes)))


def group_sums(column: npt.NDArray[Any], starts: Int64Array) -> Int64Array:
    """Sums of an integer or boolean column over contiguous groups, int64 [k]."""
    if len(starts) == 0:
        return np.empty(0, dtype=np.int64)
    return np.asarray(np.add.reduceat(column, starts, dtype=np.int64))


def fold(partials: Partials, starts: Int64Array) -> Partials:
    """Merge contiguous rows: what `merge` gives, for any number of rows at once.

    Args:
        partials: k rows, k > 0, the rows of a group in their order.
        starts: int64 [g], strictly increasing from 0: where each group begins; none is empty.
    """
    sizes = np.diff(starts, append=len(partials))
    rows_n = partials.finite_count
    n = np.add.reduceat(rows_n, starts)
    share = rows_n / np.repeat(np.maximum(n, 1), sizes)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.add.reduceat(partials.mean * share, starts)
        deviation = np.where(rows_n > 0, partials.mean - np.repeat(mean, sizes), 0.0)
        # What rounding left in the mean, as in `group`.
        shift = np.add.reduceat(deviation * share, starts)
        shift = np.where(np.isfinite(shift), shift, 0.0)
        between = np.add.reduceat(rows_n * deviation * deviation, starts) - n * shift * shift
        m2 = np.add.reduceat(partials.m2, starts) + np.maximum(between, 0.0)
        total = np.add.reduceat(partials.total, starts)
    row = np.arange(len(partials))
    is_nan = np.isnan(partials.first)
    first_at = np.minimum.reduceat(np.where(is_nan, len(partials), row), starts)
    last_at = np.maximum.reduceat(np.where(is_nan, -1, row), starts)
    return Partials(
        finite_count=n,
        nan_count=np.add.reduceat(partials.nan_count, starts),
        positive_inf_count=np.add.reduceat(partials.positive_inf_count, starts),
        negative_inf_count=np.add.reduceat(partials.negative_inf_count, starts),
        total=total,
        mean=mean + shift,
        m2=m2,
        min=np.fmin.reduceat(partials.min, starts),
        max=np.fmax.reduceat(partials.max, starts),
        first=partials.first[np.where(last_at < 0, starts, np.minimum(first_at, row[-1]))],
        last=partials.last[np.where(last_at < 0, starts, last_at)],
    )


def aggregate_groups(
    value: FloatArray, starts: Int64Array, functions: Iterable[str]
) -> dict[str, FloatArray]:
    """Each function over each contiguous group, float64 [k] by name; `starts` as for `group`.

    The functions are names that `check_function` accepts. NaN is skipped.
    """
    if len(starts) == 0:
        return {function: np.empty(0) for function in functions}
    partials = group(value, starts)
    answer = {}
    for function in functions:
        quantile = quantile_of(function)
        answer[function] = (
            evaluate(partials, function)
            if quantile is None
            else _group_quantiles(value, starts, quantile)
        )
    return answer


def evaluate(partials: Partials, function: str) -> FloatArray:
    """The function's value for each group, float64 [k]; `function` is one of `FUNCTIONS`.

    A standard deviation is the population's (ddof 0). It is NaN where an infinity takes part.
    Squared deviations must fit float64: it is infinite for values more than about 1e154 apart, and
    0 for values less than about 1e-160 apart.
    """
    if function == "count":
        return partials.count.astype(np.float64)
    if function == "sum":
        return _with_infinities(partials, partials.total)
    has_any = partials.count > 0
    if function == "mean":
        return np.where(has_any, _with_infinities(partials, partials.mean), np.nan)
    if function == "std":
        is_defined = has_any & (partials.finite_count == partials.count)
        variance = partials.m2 / np.maximum(partials.finite_count, 1)
        return np.where(is_defined, np.sqrt(variance), np.nan)
    column: FloatArray = getattr(partials, function)
    return column


def quantile_linear(value: FloatArray, quantile: float) -> float:
    """The exact quantile in 0..1, interpolated linearly between neighbours; NaN over nothing.

    Between minus and plus infinity it is NaN.
    """
    value = np.asarray(value[~np.isnan(value)], dtype=np.float64)
    if len(value) == 0:
        return float("nan")
    position = quantile * (len(value) - 1)
    below = int(position)
    above = min(below + 1, len(value) - 1)
    parted = np.partition(value, (below, above))
    low, high, share = float(parted[below]), float(parted[above]), position - below
    if low == high or share == 0:
        return low
    # Weighted ends, not low + (high - low) * share: the difference of infinities is NaN, and that
    # of two huge numbers overflows.
    return low * (1 - share) + high * share


def _group_quantiles(value: FloatArray, starts: Int64Array, quantile: float) -> FloatArray:
    """`quantile_linear` of every contiguous group, float64 [k]."""
    value = np.asarray(value, dtype=np.float64)
    sizes = np.diff(starts, append=len(value))
    ordered = value[np.lexsort((value, np.repeat(np.arange(len(starts)), sizes)))]  # NaN last
    n = sizes - np.add.reduceat(np.isnan(value), starts, dtype=np.int64)
    position = quantile * np.maximum(n - 1, 0)
    below = position.astype(np.int64)
    low = ordered[starts + below]
    high = ordered[starts + np.minimum(below + 1, np.maximum(n - 1, 0))]
    share = position - below
    with np.errstate(invalid="ignore"):
        between = low * (1 - share) + high * share
    # With nothing but NaN, the first of a group is NaN.
    return np.asarray(np.where((low == high) | (share == 0), low, between))


def _with_infinities(partials: Partials, finite: FloatArray) -> FloatArray:
    """What a sum or mean becomes when infinities take part: that infinity, NaN where both do."""
    has_positive, has_negative = partials.positive_inf_count > 0, partials.negative_inf_count > 0
    one_sided = np.where(has_positive, np.inf, np.where(has_negative, -np.inf, finite))
    return np.where(has_positive & has_negative, np.nan, one_sided)


def _nothing() -> Partials:
    zero, nan = np.zeros(1, dtype=np.int64), np.full(1, np.nan)
    none = np.zeros(1)
    return Partials(zero, zero, zero, zero, none, none, none, nan, nan, nan, nan)


def _join(head: Partials, tail: Partials) -> Partials:
    names = [field.name for field in fields(Partials)]
    return Partials(*(np.concatenate((getattr(head, n), getattr(tail, n))) for n in names))
