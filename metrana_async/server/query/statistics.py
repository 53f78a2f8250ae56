"""Runs in groups: statistics across them, at each x or bucket; and what curves share with that.

Every point of the window takes part, one run at a time: a run is read, summarised at a level that
suits it, and brought to the common grid when all runs are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from metrana_async.errors import InvalidQueryError, NotFoundError, UnsupportedAggregationError
from metrana_async.server.query import across, aggregate, groups
from metrana_async.server.query import buckets as grid
from metrana_async.server.query.buckets import Buckets, Treatment
from metrana_async.server.query.line_points import line_points
from metrana_async.server.query.near_names import nearest
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.sketches import sketch
from metrana_async.server.store.base import RunRow
from metrana_async.wire import limits
from metrana_async.wire.model import FloatArray, Int64Array
from metrana_async.wire.statistics import StatisticsQuery

GROUP_FUNCTIONS: Final = ("mean", "std", "min", "max")

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """An answer: columns of one length, and facts beside them."""

    columns: dict[str, Int64Array | FloatArray]
    facts: Facts


@dataclass(slots=True)
class Window:
    """The x that an answer spans: what was asked for, else what was found."""

    query: StatisticsQuery
    found: list[int] = field(default_factory=list)

    def see(self, x: Int64Array) -> None:
        """Take the x of a line's points into account."""
        if len(x):
            self.found += (int(x.min()), int(x.max()))

    def level(self, buckets_count: int) -> int:
        """The grid's level for what was seen until now; it only ever rises."""
        return grid.level_for(*self.bounds, buckets_count)

    @property
    def bounds(self) -> tuple[int, int]:
        """First and last x of the window."""
        first, last = self.query.from_x, self.query.to_x
        if first is None:
            first = min(self.found, default=0 if last is None else last)
        if last is None:
            last = max(self.found, default=first)
        return first, max(first, last)


def group_runs(service: QueryService, query: StatisticsQuery) -> Table:
    """Statistics across the runs of each group, at each x or bucket.

    Raises:
        NotFoundError: no run has the series, or none has a field of `by`.
        InvalidQueryError: a run is named twice, or there are more than `limits.LINES_COUNT`.
        UnsupportedAggregationError: a function that is not offered across runs, or a first stage
            that the series does not offer.
    """
    functions = across_functions(query)
    runs = find_runs(service, query)
    described = [service.run(run) for run in runs]
    keys, group_of_run = groups.partition(_run_keys(described, query.by))
    treatment = _treatment(query)
    window = Window(query)
    parts: dict[int, tuple[Buckets, str]] = {}
    missing = []
    for at, run in enumerate(runs):
        try:
            made, is_merge = _run_buckets(service, run, query, window)
        except NotFoundError as error:
            missing.append(error)
            continue
        parts[at] = made, _first_stage(query, is_merge=is_merge)
        check_rows(sum(len(part) for part, _ in parts.values()), query)
    if not parts:
        raise missing[0]
    level = 0 if query.buckets is None else window.level(query.buckets)
    numbers = groups.side_by_side(
        [
            groups.run_numbers(grid.coarsen(made, level), at, first, treatment)
            for at, (made, first) in parts.items()
        ]
    )
    return across_table(
        across.reduce_across(numbers, group_of_run, functions),
        {
            "groups": groups.describe_groups(
                query.by, keys, group_of_run, [run.name for run in runs]
            ),
            "missing": [run.name for at, run in enumerate(runs) if at not in parts],
            "width": 1 << level,
        },
    )


def _treatment(query: StatisticsQuery) -> Treatment:
    return Treatment.AGGREGATE if query.buckets is None else Treatment.BUCKET


def _run_buckets(
    service: QueryService, run: RunRow, query: StatisticsQuery, window: Window
) -> tuple[Buckets, bool]:
    """A run's points at a level that suits it, and whether they are of a merge series."""
    found = None if query.buckets is None else sketch(service, run, query.metric, query)
    if found is not None:
        window.see(found.ends)
        return found.buckets(window.level(query.buckets or 0)), False
    points = line_points(service, run, query.metric, query)
    window.see(points.x)
    level = 0 if query.buckets is None else window.level(query.buckets)
    made = grid.summarise(
        points.x, points.value, level, line=points.line, treatment=_treatment(query)
    )
    return made, points.is_merge


def find_runs(service: QueryService, query: StatisticsQuery) -> list[RunRow]:
    """The runs of a query, in its order; each at most once."""
    if not query.runs:
        raise InvalidQueryError("the query names no run")
    if len(query.runs) > limits.LINES_COUNT:
        raise InvalidQueryError(
            f"{len(query.runs)} runs are more than an answer's {limits.LINES_COUNT}",
            hint="ask for fewer runs at a time",
        )
    runs = [service.find_run(query.workspace, query.project, run) for run in query.runs]
    seen: dict[int, str] = {}
    for name, run in zip(query.runs, runs, strict=True):
        if run.run_no in seen:
            raise InvalidQueryError(
                f"run {run.name!r} is named twice: as {seen[run.run_no]!r} and as {name!r}"
            )
        seen[run.run_no] = name
    return runs


def across_functions(query: StatisticsQuery) -> list[str]:
    """The statistics across members to answer; the count is a column anyway."""
    functions = list(dict.fromkeys(query.functions or GROUP_FUNCTIONS))
    for function in functions:
        across.check_across(function)
    return [function for function in functions if function != "count"]


def across_table(made: across.Across, facts: Facts) -> Table:
    """Statistics across members as an answer."""
    names = ("group", "x", "count", "members_count", "points_count", "nan_count")
    columns = {name: getattr(made, name) for name in names}
    return Table({**columns, **made.values}, {**facts, "functions": list(made.values)})


def check_rows(rows_count: int, query: StatisticsQuery) -> None:
    """InvalidQueryError where an answer would pass `limits.ANSWER_ROWS`."""
    if rows_count > limits.ANSWER_ROWS:
        raise InvalidQueryError(
            f"{', '.join(query.metrics)} in {len(query.runs)} runs has {rows_count} rows, more "
            f"than an answer's {limits.ANSWER_ROWS}",
            hint="ask for buckets (n=), a window (from_=, to=) or fewer runs",
        )


# --- parts ---------------------------------------------------------------------------------------
def _first_stage(query: StatisticsQuery, *, is_merge: bool) -> str:
    """How a run's points at one x become one number; without a word, a merge step reads as last."""
    first = query.first or ("last" if is_merge else "mean")
    aggregate.check_function(first, is_merge=is_merge)
    if first not in aggregate.FUNCTIONS:
        raise UnsupportedAggregationError(
            f"{first!r} is not offered as the first stage over a run's points; offered are "
            f"{', '.join(aggregate.FUNCTIONS)}"
        )
    return first


def _run_keys(described: Sequence[Facts], by: Sequence[str]) -> list[list[Any]]:
    """What each run has under each name of `by`; None where it has nothing."""
    by_run = [groups.run_fields(run) for run in described]
    for path in by:
        if not any(path in there for there in by_run):
            raise NotFoundError(
                f"none of the {len(described)} runs has {path!r} to group by",
                hint=nearest(path, set().union(*by_run), "run(name).attributes"),
            )
    return [[there.get(path) for path in by] for there in by_run]
