"""What the dashboard's pages list: projects, the curves that runs have, episodes and trends.

Every number is of all visible points; a list that is cut says how many rows there are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from metrana_async.errors import InvalidQueryError
from metrana_async.server.query import across, statistics
from metrana_async.server.query.buckets import level_for
from metrana_async.server.query.line_points import rl_columns
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.statistics import Table
from metrana_async.server.store.base import RunRow
from metrana_async.wire.model import EPISODE_SCALE, Family, FloatArray, Int64Array, Ordering
from metrana_async.wire.statistics import StatisticsQuery

_ROWS_DEFAULT: Final = 500
_TREND_PLACES: Final = 40
_RUNNING: Final = "running"


def projects(service: QueryService) -> list[dict[str, Any]]:
    """Every project of every workspace, the one in which something happened last first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in service.store.runs():
        empty = {"workspace": row.workspace, "project": row.project, "runs_count": 0}
        entry = found.setdefault(
            (row.workspace, row.project), {**empty, "running_count": 0, "last_ms": 0}
        )
        entry["runs_count"] += 1
        entry["running_count"] += row.state == _RUNNING
        entry["last_ms"] = max(entry["last_ms"], row.created_ms, row.state_ms)
    return sorted(found.values(), key=lambda entry: -entry["last_ms"])


def curves(service: QueryService, query: StatisticsQuery) -> list[dict[str, Any]]:
    """The distinct series of some runs by name, and which of the runs have each.

    A series is `family`, `metric`, `scale`, `labels` and whether it `merges`; `runs` are positions
    in the query's runs.
    """
    found: dict[tuple[str, str, str, tuple[tuple[str, str], ...], bool], list[int]] = {}
    for at, run in enumerate(statistics.find_runs(service, query)):
        for row in service.series_rows(run):
            of = row.definition
            is_merge = of.ordering is Ordering.MERGE
            key = of.metric, of.family.value, of.scale, of.labels, is_merge
            found.setdefault(key, []).append(at)
    return [
        {
            "metric": metric,
            "family": family,
            "scale": scale,
            "labels": dict(labels),
            "merges": is_merge,
            "runs": runs,
        }
        for (metric, family, scale, labels, is_merge), runs in sorted(found.items())
    ]


# --- episodes ------------------------------------------------------------------------------------
def episode_table(service: QueryService, query: StatisticsQuery) -> Table:
    """One row an episode: environment, number, rl_step, and each metric of the run.

    Where metrics of one episode were logged at different rl_steps the row shows the highest. NaN
    stands also where an episode has not got the metric. `restarts` counts how often the episode
    began anew. Newest first, or by `order_by` with ``-`` before it for the highest first.

    Raises:
        NotFoundError: the run has no such metric or environment.
        InvalidQueryError: an order that the table does not have.
    """
    run = service.find_run(query.workspace, query.project, query.run)
    parts = [
        rl_columns(
            service,
            run,
            metric,
            _of_episodes(query),
            env_id=query.env_id,
            rl_step_range=query.rl_step_range,
        )
        for metric in query.metrics
    ]
    if not parts:
        raise InvalidQueryError("the query names no metric")
    keys = np.concatenate([np.stack((part.env_no, part.episode)) for part in parts], axis=1)
    unique, row_of = np.unique(keys, axis=1, return_inverse=True)
    columns: dict[str, Int64Array | FloatArray] = {
        "env": unique[0],
        "episode": unique[1],
        "rl_step": np.full(unique.shape[1], -1, dtype=np.int64),
    }
    end = 0
    for metric, part in zip(query.metrics, parts, strict=True):
        rows = row_of.reshape(-1)[end : end + len(part.env_no)]
        end += len(part.env_no)
        columns[metric] = np.full(unique.shape[1], np.nan)
        columns[metric][rows] = part.value
        np.maximum.at(columns["rl_step"], rows, part.rl_step)
    columns["restarts"] = _restarts(service, run, unique)
    order = _order(columns, query.order_by)[: query.limit or _ROWS_DEFAULT]
    return Table(
        {name: column[order] for name, column in columns.items()},
        {
            "env_names": max((part.env_names for part in parts), key=len),
            "total_count": unique.shape[1],
            "metrics": query.metrics,
        },
    )


def _of_episodes(query: StatisticsQuery) -> StatisticsQuery:
    return StatisticsQuery(
        scale=EPISODE_SCALE, labels=query.labels, episode_range=query.episode_range
    )


def _restarts(service: QueryService, run: RunRow, episodes: Int64Array) -> Int64Array:
    """How often each episode (columns env and number) began anew, over all its series."""
    count: dict[tuple[int, int], int] = {}
    for row in service.series_rows(run):
        if row.definition.family is Family.ENV_STEP:
            for cut in service.store.cuts(row.series_no):
                key = cut.env_no, cut.episode
                count[key] = max(count.get(key, 0), cut.generation)
    restarts = np.zeros(episodes.shape[1], dtype=np.int64)
    if count:
        pairs = zip(*episodes.tolist(), strict=True)
        restarts[:] = [count.get((env, episode), 0) for env, episode in pairs]
    return restarts


def _order(columns: dict[str, Int64Array | FloatArray], order_by: str | None) -> Int64Array:
    """Rows in the order asked for, NaN last; ties go by environment and episode."""
    wanted = order_by or "-rl_step"
    name = wanted if wanted in columns else wanted.removeprefix("-")
    if name not in columns:
        raise InvalidQueryError(
            f"order_by of the query is {order_by!r}; it is one of {', '.join(sorted(columns))}",
            hint="with - before it for the highest first",
        )
    key = columns[name].astype(np.float64)
    return np.lexsort((key if name == wanted else -key, np.isnan(key)))


# --- trends --------------------------------------------------------------------------------------
def env_trends(service: QueryService, query: StatisticsQuery) -> Table:
    """The course of one metric in each of some environments: its mean at some forty places.

    Places are ranges of rl_steps of one width, the same for all; columns `env` (a position in
    `env_ids` of the query), `x` (where the range begins) and `mean`.

    Raises:
        NotFoundError: the run has no such metric or environment.
        InvalidQueryError: the query names no environments.
    """
    run = service.find_run(query.workspace, query.project, query.run)
    if not query.env_ids:
        raise InvalidQueryError("the query names no env_ids")
    read = [
        rl_columns(service, run, query.metric, query, env_id=env_id) for env_id in query.env_ids
    ]
    x = np.concatenate([part.rl_step for part in read])
    env = np.repeat(np.arange(len(read)), [len(part.rl_step) for part in read])
    value = np.concatenate([part.value for part in read])
    level = level_for(int(x.min()), int(x.max()), _TREND_PLACES // 2) if len(x) else 0
    reduced = across.reduce_each(x >> level, env, value, "mean")
    return Table(
        {"env": reduced.member, "x": reduced.x << level, "mean": reduced.value},
        {"env_ids": query.env_ids, "width": 1 << level},
    )
