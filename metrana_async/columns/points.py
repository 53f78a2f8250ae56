"""Columns of one `log` or `log_distributed` call, and mappings flattened into metrics.

Pure. Everything the caller passed is checked and copied here, before anything is enqueued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from metrana_async.columns.integers import (
    coerce_integer,
    coerce_integers,
    coerce_time,
    coerce_times,
    is_scalar,
)
from metrana_async.columns.values import coerce_values
from metrana_async.errors import (
    InvalidNameError,
    InvalidShapeError,
    InvalidStepError,
    InvalidTypeError,
)
from metrana_async.wire.limits import METRIC_NAME_BYTES, STEP_MAX
from metrana_async.wire.model import AUTOMATIC, FloatArray, Int64Array


class StandardColumns(NamedTuple):
    """n points of one STANDARD series, as `blocks.PointBlock` holds them.

    Attributes:
        value: float32 or float64 [n], owned.
        step: AUTOMATIC, k for k, k+1, …, or int64 [n].
        time_ms: one stamp for all, or int64 [n].
        notes: kinds of `values.NOTE_TEXTS`.
    """

    value: FloatArray
    step: int | Int64Array
    time_ms: int | Int64Array
    notes: tuple[str, ...]


def standard_columns(
    value: Any,
    step: Any,
    timestamp: Any,
    dtype: Any,
    now_ms: int,
    *,
    step_required: bool,
) -> StandardColumns:
    """Validate and copy one call of `log` or `log_distributed` for one metric.

    Args:
        value: a number or [n]; masked points of a masked array are dropped with their steps.
        step: None for the next numbers, k for k..k+n-1, or [n].
        timestamp: Unix ms, one or [n]; None is `now_ms`.
        dtype: see `values.coerce_values`.
        now_ms: the caller's clock.
        step_required: refuse ``step=None`` (merge series have no next number).

    Raises:
        InvalidShapeError: `value` has more than one dimension, or `step` or `timestamp` another
            length.
        InvalidTypeError, InvalidStepError, InvalidValueError: an element is not acceptable.
    """
    values = coerce_values(value, dtype)
    array = values.array
    if array.ndim > 1:
        raise InvalidShapeError(
            f"value has shape {list(array.shape)}; a standard metric takes a number or [n]",
            hint="log_rl_environment_step takes [M, T]: M environments of T env steps",
        )
    array = array.reshape(-1)
    steps = _steps(step, len(array), step_required=step_required)
    times = time_column(timestamp, len(array), now_ms)
    if values.mask is not None:
        kept = np.flatnonzero(values.mask)
        array = array[kept]
        if isinstance(steps, np.ndarray):
            steps = steps[kept]
        elif steps != AUTOMATIC:
            steps = steps + kept
        times = times[kept] if isinstance(times, np.ndarray) else times
    return StandardColumns(array, steps, times, values.notes)


def _steps(step: Any, n: int, *, step_required: bool) -> int | Int64Array:
    if step is None:
        if step_required:
            raise InvalidTypeError(
                "log_distributed needs step=",
                hint="many writers have no common next number; pass the global training step",
            )
        return AUTOMATIC
    if is_scalar(step):
        first = coerce_integer(step, "step")
        if n and first > STEP_MAX - (n - 1):
            raise InvalidStepError(f"step {first} and {n} values would pass 2**63-1")
        return first
    steps = coerce_integers(step, "step")
    if steps.shape != (n,):
        raise InvalidShapeError(f"step has shape {list(steps.shape)}, value has {n} points")
    return steps


def time_column(timestamp: Any, n: int, now_ms: int) -> int | Int64Array:
    """Times of n points: `now_ms` for None, one for all, or [n].

    Raises:
        InvalidShapeError: another length.
        InvalidTypeError, InvalidStepError: an element is no integer within 2**53 ms.
    """
    if timestamp is None:
        return now_ms
    if is_scalar(timestamp):
        return coerce_time(timestamp)
    times = coerce_times(timestamp)
    if times.shape != (n,):
        raise InvalidShapeError(f"timestamp has shape {list(times.shape)}, value has {n} points")
    return times


def flatten_mapping(mapping: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """List the metrics of a mapping; a mapping inside it contributes ``outer/inner``.

    Names are joined, not checked otherwise.

    Raises:
        InvalidTypeError: a key is not a str.
        InvalidNameError: two paths give one name, or nesting makes a name too long.
    """
    found: dict[str, Any] = {}
    _flatten_into(found, mapping, "")
    return list(found.items())


def _flatten_into(found: dict[str, Any], mapping: Mapping[Any, Any], prefix: str) -> None:
    if len(prefix) > METRIC_NAME_BYTES:  # also where a mapping contains itself
        raise InvalidNameError(f"metric name {prefix[:40]!r}… is nested too deeply")
    for key, value in mapping.items():
        if not isinstance(key, str):
            where = f" under {prefix!r}" if prefix else ""
            raise InvalidTypeError(f"metric name{where} is {key!r:.60}, not a str")
        name = prefix + str.__str__(key)
        if isinstance(value, Mapping):
            _flatten_into(found, value, f"{name}/")
        elif name in found:
            raise InvalidNameError(f"metric name {name!r} is given twice, nested and flat")
        else:
            found[name] = value
