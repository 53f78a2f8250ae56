"""Curves of many runs and metrics, bucketed on one grid.

Every point of the window takes part, one line at a time: a line is read, summarised at a level that
suits it, and brought to the common grid when all lines are known. A reader who says which versions
he has is told which lines are as they were, and of the others only what changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from metrana_async.errors import InvalidQueryError, NotFoundError, UnsupportedAggregationError
from metrana_async.server.query import aggregate
from metrana_async.server.query import buckets as grid
from metrana_async.server.query.buckets import Buckets, Treatment
from metrana_async.server.query.line_points import LinePoints, line_points
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.sketches import sketch
from metrana_async.server.query.statistics import Facts, Table, Window, find_runs
from metrana_async.server.query.versions import Rows, first_difference, version_of
from metrana_async.server.store.base import RunRow
from metrana_async.wire import limits
from metrana_async.wire.model import FloatArray, Int64Array
from metrana_async.wire.statistics import StatisticsQuery, encode_statistics_query

_BUCKETS_DEFAULT: Final = 500
_MERGE_LACKS: Final = tuple(f for f in grid.FUNCTIONS if f not in aggregate.MERGE_FUNCTIONS)


@dataclass(slots=True)
class _Line:
    """One curve while an answer is made; `summary` is None where the run has no such series."""

    run: RunRow
    metric: str
    summary: Buckets | None = None
    is_exact: bool = False
    is_merge: bool = False
    treatment: Treatment = Treatment.BUCKET


def buckets(service: QueryService, query: StatisticsQuery) -> Table:
    """Every metric of every run as a line, all on one grid.

    A line with at most 2n points in the window is answered by its points, unless the query says
    otherwise; a merge series by its steps.

    Raises:
        NotFoundError: no run has any of the series; where only some lack it, their line says so.
        InvalidQueryError: more lines than `limits.LINES_COUNT`.
        UnsupportedAggregationError: a function that buckets, or a merge series, do not offer.
    """
    functions = _bucket_functions(query)
    lines = _lines(service, query)
    window = Window(_closed(service, query, lines))
    padded = _padded(query, window.query)
    missing = []
    for line in lines:
        try:
            if _is_sketched(service, line, padded, window):
                continue
            points = line_points(service, line.run, line.metric, padded)
        except NotFoundError as error:
            missing.append(error)
            continue
        if points.is_merge:
            for function in query.functions or ():
                aggregate.check_function(function, is_merge=True)
        _summarise(line, points, window)
    if len(missing) == len(lines):
        raise missing[0]
    return _table(service, padded, lines, window, functions)


def _bucket_functions(query: StatisticsQuery) -> list[str]:
    functions = list(dict.fromkeys(query.functions or grid.FUNCTIONS))
    for function in functions:
        if function not in grid.FUNCTIONS:
            raise UnsupportedAggregationError(
                f"{function!r} is not offered of buckets; offered are "
                f"{', '.join(grid.FUNCTIONS)}; counts always come with them"
            )
    return functions


def _lines(service: QueryService, query: StatisticsQuery) -> list[_Line]:
    runs = find_runs(service, query)
    if not query.metrics:
        raise InvalidQueryError("the query names no metric")
    if query.all_envs:
        raise InvalidQueryError(
            "buckets are of one environment",
            hint="name the env_id, or read statistics across environments",
        )
    lines_count = len(runs) * len(query.metrics)
    if lines_count > limits.LINES_COUNT:
        raise InvalidQueryError(
            f"{len(runs)} runs × {len(query.metrics)} metrics are {lines_count} lines, more than "
            f"an answer's {limits.LINES_COUNT}",
            hint="ask for fewer runs or metrics at a time",
        )
    return [_Line(run, metric) for run in runs for metric in query.metrics]


# --- the window ----------------------------------------------------------------------------------
def _closed(
    service: QueryService, query: StatisticsQuery, lines: Iterable[_Line]
) -> StatisticsQuery:
    """The query with both ends of its window, where one is open and a padding is a part of it."""
    if not query.pad or (query.from_x is None) == (query.to_x is None):
        return query
    window = Window(query)
    for line in lines:
        try:
            found = sketch(service, line.run, line.metric, query)
            window.see(
                line_points(service, line.run, line.metric, query).x
                if found is None
                else found.ends
            )
        except NotFoundError:
            continue  # said when the line is read
    first, last = window.bounds
    return replace(query, from_x=first, to_x=last)


def _padded(query: StatisticsQuery, closed: StatisticsQuery) -> StatisticsQuery:
    """What is read: the window, wider on the sides where it was cut."""
    first, last = closed.from_x, closed.to_x
    if not query.pad or first is None or last is None:
        return closed
    more = math.ceil(query.pad * (max(last - first, 0) + 1))
    return replace(
        closed,
        from_x=first if query.from_x is None else max(first - more, -(2**63)),
        to_x=last if query.to_x is None else min(last + more, limits.STEP_MAX),
    )


def _is_sketched(
    service: QueryService, line: _Line, padded: StatisticsQuery, window: Window
) -> bool:
    """Whether the line is too long to be shown by its points and summaries could be had of it."""
    found = sketch(service, line.run, line.metric, padded)
    n = window.query.buckets or _BUCKETS_DEFAULT
    if found is None or found.points_count <= _exact_points(n, window.query):
        return False
    window.see(found.ends)
    line.summary = found.buckets(window.level(n))
    return True


def _exact_points(n: int, query: StatisticsQuery) -> float:
    """At most so many points, padding among them, are shown as they are."""
    return 2 * n * (1 + 2 * query.pad)


def _summarise(line: _Line, points: LinePoints, window: Window) -> None:
    query, x, value = window.query, points.x, points.value
    window.see(x)
    n = query.buckets or _BUCKETS_DEFAULT
    places = np.unique(x) if points.is_merge else x
    line.is_merge = points.is_merge
    line.is_exact = query.exact and len(places) <= _exact_points(n, query)
    if line.is_exact and query.pad:
        # Padding lets more points through; it does not make a window exact that was not.
        first, last = window.bounds
        line.is_exact = int(((places >= first) & (places <= last)).sum()) <= 2 * n
    if line.is_exact and not points.is_merge:
        line.treatment = Treatment.AGGREGATE  # a point shows as it is
        line.summary = grid.points_as_rows(x, value)
    else:
        line.summary = grid.summarise(x, value, 0 if line.is_exact else window.level(n))


# --- the answer ----------------------------------------------------------------------------------
def _table(
    service: QueryService,
    query: StatisticsQuery,
    lines: Sequence[_Line],
    window: Window,
    functions: Sequence[str],
) -> Table:
    level = window.level(query.buckets or _BUCKETS_DEFAULT)
    parts, facts = [], []
    had = None if query.if_version is None else frozenset(query.if_version)
    for at, line in enumerate(lines):
        facts.append(_line_facts(line))
        if line.summary is None:
            continue
        made = line.summary if line.is_exact else grid.coarsen(line.summary, level)
        rows = _line_rows(line, made, functions)
        facts[-1] |= _extent(made)
        rows, news = _news(service, _question(query, line, level), rows, had)
        facts[-1] |= news
        parts.append({"line": np.full(len(rows["x"]), at, dtype=np.int64), **rows})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    first, last = _padded_bounds(query, window)
    return Table(
        columns,
        {
            "lines": facts,
            "functions": list(functions),
            "axis": query.axis,
            "width": 1 << level,
            "first_edge": (first >> level) << level,
            "buckets_count": (last >> level) - (first >> level) + 1 if window.found else 0,
        },
    )


def _padded_bounds(query: StatisticsQuery, window: Window) -> tuple[int, int]:
    first, last = window.bounds
    if query.from_x is not None:
        first = min(first, query.from_x)
    return first, last if query.to_x is None else max(last, query.to_x)


def _line_facts(line: _Line) -> Facts:
    return {
        "run": line.run.name,
        "run_uid": line.run.run_uid,
        "project": line.run.project,
        "metric": line.metric,
        "found": line.summary is not None,
        "exact": line.is_exact,
    }


def _extent(made: Buckets) -> Facts:
    return {
        "points_count": int(made.points_count.sum()),
        "x_first": int(made.x_first[0]) if len(made) else None,
        "x_last": int(made.x_last[-1]) if len(made) else None,
    }


def _line_rows(
    line: _Line, made: Buckets, functions: Sequence[str]
) -> dict[str, Int64Array | FloatArray]:
    values = grid.value_columns(made, functions, treatment=line.treatment)
    if line.is_merge:
        for function in set(functions) & set(_MERGE_LACKS):
            values[function] = np.full(len(made), np.nan)
    return {
        "x": made.x,
        "x_first": made.x_first,
        "x_last": made.x_last,
        "count": made.partials.finite_count,
        "nan_count": made.partials.nan_count,
        "positive_inf_count": made.partials.positive_inf_count,
        "negative_inf_count": made.partials.negative_inf_count,
        **values,
    }


def _news(
    service: QueryService, question: bytes, rows: Rows, versions: frozenset[str] | None
) -> tuple[dict[str, Any], Facts]:
    """What of a line's rows the reader of these versions has not got, and what to tell him."""
    version = version_of(question, rows)
    facts: Facts = {"version": version, "unchanged": False, "revised_from": None}
    if versions is None:
        return dict(rows), facts
    had = service.versions.find(question, versions)
    service.versions.keep(question, version, rows)
    if version in versions:
        return {name: column[:0] for name, column in rows.items()}, {**facts, "unchanged": True}
    if had is None:
        return dict(rows), facts
    place = first_difference(had, rows)
    if place == 0:
        return dict(rows), facts
    revised_from = min(int(table["x"][place]) for table in (had, rows) if place < len(table["x"]))
    start = int(np.searchsorted(rows["x"], revised_from))
    return {name: column[start:] for name, column in rows.items()}, {
        **facts,
        "revised_from": revised_from,
    }


def _question(query: StatisticsQuery, line: _Line, level: int) -> bytes:
    """What a line answers, whoever asks it and beside whatever other lines."""
    asked = replace(
        query, runs=[line.run.run_uid], metrics=[line.metric], project=None, if_version=None
    )
    grid_text = b"exact" if line.is_exact else b"%d" % level
    return grid_text + b"\0" + encode_statistics_query(asked)
