"""Statistics across environments, in two stages. Pure: columns in, columns out.

First each environment's points at one place of the axis are reduced to one number, then those
numbers are reduced across the environments. So an environment that logged a hundred points weighs
as much as one that logged a single point. Every point takes part; nothing is sampled. NaN is
skipped at both stages: an environment that has only NaN at a place does not count there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from metrana_async.errors import UnsupportedAggregationError
from metrana_async.server.query.aggregate import (
    aggregate_groups,
    check_function,
    group_starts,
    group_sums,
    quantile_of,
)
from metrana_async.wire.model import FloatArray, Int64Array

FUNCTIONS: Final = ("count", "mean", "std", "min", "max")
"""What is offered across environments or runs, besides quantiles."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One number for each (x, member), ordered by (x, member); columns are [k].

    Attributes:
        member: int64; an environment, or a run.
        value: float64; NaN where the member had only NaN.
        points_count, nan_count: points behind it, and how many of them were skipped, int64.
    """

    x: Int64Array
    member: Int64Array
    value: FloatArray
    points_count: Int64Array
    nan_count: Int64Array


@dataclass(frozen=True, slots=True)
class Across:
    """Statistics for each (group, x), ordered by it; columns are [k].

    Attributes:
        count: members that take part, int64; a member whose number is NaN does not.
        members_count: members that have points here, NaN or not.
        points_count, nan_count: points behind the row, and how many of them were skipped.
        values: float64 [k] by function.
    """

    group: Int64Array
    x: Int64Array
    count: Int64Array
    members_count: Int64Array
    points_count: Int64Array
    nan_count: Int64Array
    values: dict[str, FloatArray]

    def __len__(self) -> int:
        return len(self.x)


def check_across(function: str) -> None:
    """Refuse what has no meaning across members that have no order.

    Raises:
        UnsupportedAggregationError: names what is offered.
    """
    if function not in FUNCTIONS and quantile_of(function) is None:
        raise UnsupportedAggregationError(
            f"{function!r} is not offered across environments or runs; offered are "
            f"{', '.join(FUNCTIONS)}, median, p0..p100 (as in p95) and quantile:0..1"
        )


def reduce_each(x: Int64Array, member: Int64Array, value: FloatArray, function: str) -> Reduced:
    """The first stage: each member's points at each x to one number.

    Args:
        x: int64 [n], in any order.
        member: int64 [n].
        value: float32 or float64 [n]; first and last go by the order of the rows.
        function: a name that `aggregate.check_function` accepts.
    """
    check_function(function, is_merge=False)
    order = np.lexsort((member, x))  # stable: rows of one member at one x keep their order
    x, member, value = x[order], member[order], value[order]
    starts = group_starts(x, member)
    points_count = np.diff(starts, append=len(x))
    nan_count = group_sums(np.isnan(value), starts)
    reduced = aggregate_groups(value, starts, [function])[function]
    return Reduced(
        x=x[starts],
        member=member[starts],
        # A count or a sum over nothing is 0, which is no number of this member.
        value=np.where(nan_count < points_count, reduced, np.nan),
        points_count=points_count,
        nan_count=nan_count,
    )


def reduce_across(
    reduced: Reduced, group_of_member: Int64Array, functions: Sequence[str]
) -> Across:
    """The second stage: the members' numbers of each group at each x to statistics.

    Args:
        reduced: the first stage.
        group_of_member: int64, indexed by member.
        functions: names that `check_across` accepts.
    """
    for function in functions:
        check_across(function)
    group = group_of_member[reduced.member]
    order = np.lexsort((reduced.x, group))
    group, x, value = group[order], reduced.x[order], reduced.value[order]
    starts = group_starts(group, x)
    values = aggregate_groups(value, starts, dict.fromkeys((*functions, "count")))
    return Across(
        group=group[starts],
        x=x[starts],
        count=values["count"].astype(np.int64),
        members_count=np.diff(starts, append=len(x)),
        points_count=group_sums(reduced.points_count[order], starts),
        nan_count=group_sums(reduced.nan_count[order], starts),
        values={function: values[function] for function in functions},
    )
