"""Columns of one `log_rl_episode` call: one row per episode, many environments in one call.

Pure. Everything the caller passed is checked and copied here, before anything is enqueued.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metrana_async.columns.integers import coerce_integer, coerce_integers, is_scalar
from metrana_async.columns.names import check_env_id, check_repeatable_env_ids
from metrana_async.columns.points import time_column
from metrana_async.columns.values import coerce_values
from metrana_async.errors import InvalidShapeError, InvalidTypeError
from metrana_async.wire.model import AUTOMATIC, FloatArray, Int64Array


class EpisodeColumns(NamedTuple):
    """n episodes of one EPISODE series, as `blocks.PointBlock` holds them.

    Attributes:
        value: float32 or float64 [n], owned.
        env_ids: n ids, the environment of each row; ids may repeat.
        rl_step: int64 [n].
        episode: AUTOMATIC (the next numbers of each environment), or int64 [n].
        time_ms: one stamp for all, or int64 [n].
        notes: kinds of `values.NOTE_TEXTS`.
    """

    value: FloatArray
    env_ids: tuple[str, ...]
    rl_step: Int64Array
    episode: int | Int64Array
    time_ms: int | Int64Array
    notes: tuple[str, ...]


def episode_columns(
    value: Any,
    rl_step: Any,
    episode: Any,
    env_id: Any,
    *,
    now_ms: int,
    timestamp: Any = None,
    dtype: Any = None,
) -> EpisodeColumns:
    """Validate and copy one call of `log_rl_episode`.

    Args:
        value: a number or [N]; masked rows of a masked array are dropped.
        rl_step: the training update, one or [N].
        episode: None for the next number of each environment, one number, or [N].
        env_id: one id, None (``default``), or N ids; ids may repeat.
        now_ms: the caller's clock.
        timestamp: Unix ms, one or [N]; None is `now_ms`.
        dtype: see `values.coerce_values`.

    Raises:
        InvalidShapeError: an argument is neither scalar nor as long as `value`, or one episode
            number is given to several values of one environment.
        InvalidTypeError, InvalidNameError, InvalidStepError, InvalidValueError: an element is not
            acceptable.
    """
    values = coerce_values(value, dtype)
    if values.array.ndim > 1:
        raise InvalidShapeError(
            f"value has shape {list(values.array.shape)}; log_rl_episode takes a number or [N]"
        )
    array = values.array.reshape(-1)
    n = len(array)
    env_ids = _env_ids(env_id, n)
    rl_steps = _column(rl_step, "rl_step", n)
    episodes = _episodes(episode, env_ids)
    times = time_column(timestamp, n, now_ms)
    if values.mask is not None:
        kept = np.flatnonzero(values.mask)
        array, rl_steps = array[kept], rl_steps[kept]
        env_ids = tuple(map(env_ids.__getitem__, kept.tolist()))
        episodes = episodes[kept] if isinstance(episodes, np.ndarray) else episodes
        times = times[kept] if isinstance(times, np.ndarray) else times
    return EpisodeColumns(array, env_ids, rl_steps, episodes, times, values.notes)


def _env_ids(env_id: Any, n: int) -> tuple[str, ...]:
    if env_id is None or isinstance(env_id, str):
        return (check_env_id(env_id),) * n
    env_ids = check_repeatable_env_ids(env_id)
    if len(env_ids) == 1:
        return env_ids * n
    if len(env_ids) != n:
        raise InvalidShapeError(f"env_id has {len(env_ids)} ids, value has {n} points")
    return env_ids


def _column(x: Any, what: str, n: int) -> Int64Array:
    if x is not None and is_scalar(x):
        return np.full(n, coerce_integer(x, what), dtype=np.int64)
    column = coerce_integers(x, what)
    if column.shape != (n,):
        raise InvalidShapeError(f"{what} has shape {list(column.shape)}, value has {n} points")
    return column


def _episodes(episode: Any, env_ids: tuple[str, ...]) -> int | Int64Array:
    if episode is None:
        return AUTOMATIC
    if isinstance(episode, bool | np.bool_):
        raise InvalidTypeError(
            f"episode is the bool {episode}, not an integer", hint="did you mean evaluation=?"
        )
    episodes = _column(episode, "episode", len(env_ids))
    if is_scalar(episode) and len(set(env_ids)) < len(env_ids):
        repeated = next(e for i, e in enumerate(env_ids) if e in env_ids[:i])
        raise InvalidShapeError(
            f"one episode ({int(episodes[0])}) and several values of environment {repeated!r}: "
            f"{len(env_ids)} values need {len(env_ids)} episodes"
        )
    return episodes
