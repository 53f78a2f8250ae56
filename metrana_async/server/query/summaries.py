"""A metric of a run in six numbers: last, min, max, mean, count, last_step.

Which series a bare metric name means: of those of that name the STANDARD one without labels at
ML_STEP, else the first by family (standard, episode, environment step), then by fewest labels, then
by name. Every point is looked at, none is sampled; only `last` and `last_step` alone are cheaper.

A `log_distributed` series has no mean. The last point of an RL series is the one logged last, over
all environments, and its last_step is the highest rl_step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from metrana_async.server.query import extents
from metrana_async.server.query.catalogue import Catalogue
from metrana_async.server.query.filters import FUNCTIONS
from metrana_async.server.query.service import EnvStepColumns, EpisodeColumns, QueryService
from metrana_async.server.store.base import RunRow, SeriesRow
from metrana_async.wire.model import ML_STEP, Family, FloatArray, Int64Array

_FAMILIES: Final = {Family.STANDARD: 0, Family.EPISODE: 1, Family.ENV_STEP: 2}
_CHEAP: Final = ("last", "last_step")


@dataclass(frozen=True, slots=True)
class Summary:
    """What `summary.<metric>.<function>` means; NaN points count for nothing but `last`."""

    last: float
    min: float
    max: float
    mean: float
    count: int
    last_step: int


def choose_series(catalogue: Catalogue, metric: str) -> SeriesRow | None:
    """The series that a bare metric name means, or None."""
    return min(catalogue.by_metric.get(metric, ()), key=_preference, default=None)


def _preference(row: SeriesRow) -> tuple[Any, ...]:
    family, _, scale, labels, *_ = row.definition
    return _FAMILIES[family], len(labels), scale != ML_STEP, scale, labels


def summarize(
    service: QueryService, run: RunRow, series: SeriesRow, functions: tuple[str, ...]
) -> Summary | None:
    """The summary of a series, as far as `functions` need it; None without visible points."""
    family, metric, _, labels, *_ = series.definition
    if family is Family.STANDARD:
        return _of_standard(service, run, series, is_cheap=set(functions) <= set(_CHEAP))
    read: Callable[..., EpisodeColumns | EnvStepColumns] = (
        service.episode_series if family is Family.EPISODE else service.env_series
    )
    columns = read(run, metric, labels=dict(labels))
    if not len(columns.value):
        return None
    latest = len(columns.time_ms) - 1 - int(np.argmax(columns.time_ms[::-1]))
    return _summary(columns.value, columns.value[latest], int(columns.rl_step.max()))


def _of_standard(
    service: QueryService, run: RunRow, series: SeriesRow, *, is_cheap: bool
) -> Summary | None:
    _, metric, scale, labels, *_ = series.definition
    bounds = None
    if is_cheap:
        (last_step,) = extents.last_steps(service.store, run.run_no, [series]).tolist()
        if last_step == extents.NOTHING:
            return None
        bounds = (last_step, last_step)
    columns, is_merge = service.standard_points(
        run, metric, scale=scale, labels=dict(labels), step_range=bounds
    )
    if not len(columns.value):
        return None
    summary = _summary(columns.value, columns.value[-1], int(columns.step[-1]))
    return replace(summary, mean=math.nan) if is_merge else summary


def _summary(value: FloatArray, last: Any, last_step: int) -> Summary:
    numbers = value[~np.isnan(value)].astype(np.float64)
    if not len(numbers):
        return Summary(float(last), math.nan, math.nan, math.nan, 0, last_step)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs have no mean
        mean = float(np.mean(numbers))
    return Summary(
        float(last), float(numbers.min()), float(numbers.max()), mean, len(numbers), last_step
    )


def summary_columns(
    service: QueryService, runs: list[RunRow], metrics: list[str]
) -> dict[str, Int64Array | FloatArray]:
    """Summaries of many metrics of many runs: columns by name, a row for each that has points.

    `run` and `metric` int64 are positions in the arguments, `last`, `min`, `max`, `mean` float64,
    `count` and `last_step` int64.
    """
    rows: list[tuple[int, int, Summary]] = []
    for run_at, run in enumerate(runs):
        catalogue = service.catalogue(run)
        for metric_at, metric in enumerate(metrics):
            chosen = choose_series(catalogue, metric)
            found = None if chosen is None else summarize(service, run, chosen, FUNCTIONS)
            if found is not None:
                rows.append((run_at, metric_at, found))
    columns: dict[str, Int64Array | FloatArray] = {
        "run": np.array([row[0] for row in rows], dtype=np.int64),
        "metric": np.array([row[1] for row in rows], dtype=np.int64),
    }
    for name in FUNCTIONS:
        values = [getattr(row[2], name) for row in rows]
        if name in ("count", "last_step"):
            columns[name] = np.array(values, dtype=np.int64)
        else:
            columns[name] = np.array(values, dtype=np.float64)
    return columns
