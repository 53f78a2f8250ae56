"""Where a curve's points come from: a run, a metric and an axis to sorted columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from metrana_async.errors import InvalidQueryError
from metrana_async.server.query.service import (
    EnvStepColumns,
    EpisodeColumns,
    QueryService,
    Range,
)
from metrana_async.server.store.base import RunRow
from metrana_async.wire import limits
from metrana_async.wire.model import ML_STEP, Family, FloatArray, Int64Array
from metrana_async.wire.statistics import StatisticsQuery

_TIMES: Final = ("time", "relative_time")


class LinePoints(NamedTuple):
    """Visible points, ordered by (line, x) and within an x as they are read; columns are [n].

    Attributes:
        line: int64; the environment's number, 0 for a STANDARD series.
        is_merge: whether they are of a merge series: x repeats, and not every function is offered.
    """

    line: Int64Array
    x: Int64Array
    value: FloatArray
    is_merge: bool


def line_points(
    service: QueryService, run: RunRow, metric: str, query: StatisticsQuery
) -> LinePoints:
    """Read the points of one metric of one run on the axis, within the window, of the query.

    With `env_id` or `all_envs` the series is an RL one, otherwise a STANDARD one.

    Raises:
        NotFoundError: the run has no such series or environment.
        InvalidQueryError: the series has no such axis.
    """
    if query.env_id is None and not query.all_envs:
        return _standard_points(service, run, metric, query)
    columns = rl_columns(
        service,
        run,
        metric,
        query,
        env_id=query.env_id,
        rl_step_range=step_window(query) if query.axis == "rl_step" else query.rl_step_range,
    )
    steps = columns.env_step if isinstance(columns, EnvStepColumns) else columns.episode
    axis = columns.rl_step if query.axis == "rl_step" else steps
    x = _times(columns.time_ms, run, query) if query.axis in _TIMES else axis
    return _in_window(LinePoints(columns.env_no, x, columns.value, is_merge=False), query)


def rl_columns(
    service: QueryService,
    run: RunRow,
    metric: str,
    query: StatisticsQuery,
    *,
    env_id: str | None = None,
    rl_step_range: Range | list[int] | None = None,
    episode_range: Range | list[int] | None = None,
) -> EpisodeColumns | EnvStepColumns:
    """The visible points of an RL series within both ranges, ordered by (env, minor step)."""
    labels = query.labels or {}
    family = service.rl_family(run, metric, query.scale, labels)
    episodes = _pair(episode_range or query.episode_range)
    if query.episode is not None:
        episodes = (query.episode, query.episode)
    rl_steps = _pair(rl_step_range)
    if query.generation is not None and (family is Family.EPISODE or query.episode is None):
        raise InvalidQueryError(
            f"generation {query.generation} is of one episode of env steps",
            hint="say which env_id and episode",
        )
    if family is Family.ENV_STEP:
        return service.env_series(
            run,
            metric,
            env_id=env_id,
            labels=labels,
            episode_range=episodes,
            rl_step_range=rl_steps,
            generation=query.generation,
        )
    columns = service.episode_series(
        run, metric, env_id=env_id, labels=labels, episode_range=episodes
    )
    if rl_steps is None:
        return columns
    # Not left to the store: of an episode logged twice only the newer counts, whatever its rl_step.
    is_in = (columns.rl_step >= rl_steps[0]) & (columns.rl_step <= rl_steps[1])
    return EpisodeColumns(
        env_no=columns.env_no[is_in],
        episode=columns.episode[is_in],
        rl_step=columns.rl_step[is_in],
        value=columns.value[is_in],
        time_ms=columns.time_ms[is_in],
        env_names=columns.env_names,
    )


def _standard_points(
    service: QueryService, run: RunRow, metric: str, query: StatisticsQuery
) -> LinePoints:
    if query.axis == "rl_step" or query.episode is not None or query.generation is not None:
        raise InvalidQueryError(
            "rl_step, episode and generation are of an RL series", hint="say which env_id"
        )
    columns, is_merge = service.standard_points(
        run,
        metric,
        scale=query.scale or ML_STEP,
        labels=query.labels or {},
        step_range=step_window(query) if query.axis == "step" else None,
    )
    x = _times(columns.time_ms, run, query) if query.axis in _TIMES else columns.step
    points = LinePoints(np.zeros(len(x), dtype=np.int64), x, columns.value, is_merge)
    return _in_window(points, query)


def _times(time_ms: Int64Array, run: RunRow, query: StatisticsQuery) -> Int64Array:
    return time_ms - run.created_ms if query.axis == "relative_time" else time_ms


def step_window(query: StatisticsQuery) -> Range | None:
    """The window as a range of steps, which are never negative; None = all."""
    if query.from_x is None and query.to_x is None:
        return None
    last = limits.STEP_MAX if query.to_x is None else query.to_x
    return max(query.from_x or 0, 0), max(last, 0)


def _in_window(points: LinePoints, query: StatisticsQuery) -> LinePoints:
    line, x, value, is_merge = points
    if query.from_x is not None or query.to_x is not None:
        first = -(2**63) if query.from_x is None else query.from_x
        last = limits.STEP_MAX if query.to_x is None else query.to_x
        is_in = (x >= first) & (x <= last)
        line, x, value = line[is_in], x[is_in], value[is_in]
    is_rising = (x[1:] >= x[:-1]) | (line[1:] != line[:-1])
    if not bool(is_rising.all()):
        order = np.lexsort((x, line))  # stable
        line, x, value = line[order], x[order], value[order]
    return LinePoints(line, x, value, is_merge)


def _pair(bounds: Range | list[int] | None) -> Range | None:
    return None if bounds is None else (bounds[0], bounds[1])
