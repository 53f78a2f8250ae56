"""Columns of one `log_rl_environment_step` call: M environments × T env steps.

Pure. `value` is the grid and everything else is laid against it (semantics, "Shapes"): values are
never broadcast across environments, while `episode`, `env_step` and `timestamp` are. What leaves
here is environment-major [M, T], owned, and checked; under ``layout="TM"`` two-dimensional
arguments are turned round on the way in.

Cells that a mask hides are not looked at, whatever they hold.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from metrana_async.columns.arrays import AnyArray, BoolArray, to_numpy
from metrana_async.columns.integers import (
    coerce_integer,
    coerce_integers,
    coerce_time,
    coerce_times,
    is_scalar,
    shape_of,
)
from metrana_async.columns.names import check_env_id, check_env_ids
from metrana_async.columns.spans import EpisodeSpans, episode_spans
from metrana_async.columns.values import coerce_values
from metrana_async.errors import (
    InvalidShapeError,
    InvalidStepError,
    InvalidTypeError,
    ValidationError,
)
from metrana_async.wire.limits import STEP_MAX
from metrana_async.wire.model import DEFAULT_ENV, FloatArray, Int64Array, StepMode

_CACHED_ENV_SETS: Final = 64
_CACHED_SINGLE_ENVS: Final = 1 << 16
_BOOLS: Final = (bool, np.bool_)  # made once: a union of types is made anew by every look


@dataclass(slots=True)
class Grid:
    """A validated grid, as `blocks.GridBlock` holds it, with names instead of numbers.

    Attributes:
        env_ids: M distinct ids; the same tuple object for the same ids (`EnvIdCache`).
        value: float32 or float64 [M, T], C-contiguous, owned.
        rl_step: the training update of every point.
        episode: None, one for all, int64 [M] or [M, T], or the runs of [M, T].
        mode: how the env-step axis is fed.
        env_step: None under the automatic modes; int or [M] = starts, [M, T] = exact.
        mask: bool [M, T], owned, False = not a point; None where all cells are points.
        time_ms: one stamp, [M] or [M, T].
        points_count: cells that are points; with 0 the call logs and pins nothing.
        notes: kinds of `values.NOTE_TEXTS`.
    """

    env_ids: tuple[str, ...]
    value: FloatArray
    rl_step: int
    episode: int | Int64Array | EpisodeSpans | None
    mode: StepMode
    env_step: int | Int64Array | None
    mask: BoolArray | None
    time_ms: int | Int64Array
    points_count: int
    notes: tuple[str, ...]


class EnvIdCache:
    """Remembers checked lists of environment ids by content. Thread-safe.

    A training loop passes the same list in every call. Comparing it with the last one costs
    little where the elements are the same objects, and notices when the caller changed the list
    in place. The tuple handed out is the same object for the same ids, so that those behind can
    recognise it by identity.
    """

    def __init__(self) -> None:
        self._recent: tuple[list[Any], tuple[str, ...]] = ([], ())
        self._known: OrderedDict[tuple[str, ...], tuple[str, ...]] = OrderedDict()
        self._singles: dict[str, tuple[str, ...]] = {}

    def resolve(self, env_id: Any) -> tuple[str, ...]:
        """Return the ids that `env_id` names: None, one id, or a list, tuple or array of ids.

        Raises:
            InvalidTypeError, InvalidNameError: see `names.check_env_ids`.
        """
        if env_id is None:
            env_id = DEFAULT_ENV
        if isinstance(env_id, str):
            return self._singles.get(env_id) or self._single(check_env_id(env_id))
        if isinstance(env_id, np.ndarray):
            return self._canonical(check_env_ids(env_id), None)
        if type(env_id) is list:
            recent, ids = self._recent
            try:
                if env_id == recent:
                    return ids
            except ValueError:  # an array among the ids has no truth value; the check names it
                return check_env_ids(env_id)
            copied = list(env_id)
            ids = self._canonical(tuple(copied), copied)
            self._recent = (copied, ids)
            return ids
        if isinstance(env_id, list | tuple):
            return self._canonical(tuple(env_id), env_id)
        return check_env_ids(env_id)  # raises, naming the type

    def _single(self, env_id: str) -> tuple[str, ...]:
        if len(self._singles) >= _CACHED_SINGLE_ENVS:
            self._singles.clear()
        return self._singles.setdefault(env_id, (env_id,))

    def _canonical(self, key: tuple[Any, ...], unchecked: Any) -> tuple[str, ...]:
        try:
            known = self._known.get(key)
        except TypeError:  # an element without a hash is no id; the check names it
            known = None
        if known is None:
            if unchecked is not None:
                key = check_env_ids(unchecked)
            if len(key) == 1:
                return self._single(key[0])
            known = self._known.setdefault(key, key)
            while len(self._known) > _CACHED_ENV_SETS:
                self._known.popitem(last=False)
        return known


def grid_columns(
    value: Any,
    rl_step: Any,
    env_ids: tuple[str, ...],
    episode: Any = None,
    env_step: Any = None,
    *,
    now_ms: int,
    auto_start_from_one: bool = False,
    timestamp: Any = None,
    mask: Any = None,
    layout: str = "MT",
    dtype: Any = None,
) -> Grid:
    """Validate and copy one call of `log_rl_environment_step`.

    Args:
        value: one id: scalar, [T] or [1, T]; M ids: [M] or [M, T].
        rl_step: the training update, one integer.
        env_ids: as `EnvIdCache.resolve` returned them.
        episode: None (no episodes), scalar, [M] or [M, T] ([T] for one id).
        env_step: None (automatic), scalar or [M] (start of each segment), or [M, T] ([T] for one
            id; the exact step of each point).
        now_ms: the caller's clock.
        auto_start_from_one: number automatic steps of episodes from 1.
        timestamp: Unix ms; None (`now_ms`), scalar, [M] or [M, T] ([T] for one id).
        mask: bool of the shape of `value`; False = not a point.
        layout: "MT", or "TM" where two-dimensional arguments are time-major.
        dtype: see `values.coerce_values`.

    Raises:
        InvalidShapeError: an argument does not fit the grid; the message has both shapes.
        InvalidTypeError, InvalidStepError, InvalidValueError: an element is not acceptable.
        ValidationError: arguments exclude each other.
    """
    if layout not in {"MT", "TM"}:
        raise ValidationError(f"layout is {layout!r}; it is 'MT' or 'TM'")
    mode = _mode(episode, env_step, auto_start_from_one=auto_start_from_one)
    rl_step = coerce_integer(rl_step, "rl_step")
    keep = None if mask is None else _mask(mask)
    values = coerce_values(value, dtype, keep=keep)
    shape = _Shape(len(env_ids), values.array.shape, is_time_major=layout == "TM")
    array = shape.grid(values.array)
    kept = None if values.mask is None else shape.grid(values.mask)
    count = array.size if kept is None else int(np.count_nonzero(kept))
    steps = None if env_step is None else _broadcast(env_step, "env_step", shape, kept)
    are_steps_exact = isinstance(steps, np.ndarray) and steps.ndim == 2
    episodes = _episodes(episode, shape, kept, are_steps_exact=are_steps_exact)
    times = now_ms if timestamp is None else _broadcast(timestamp, "timestamp", shape, kept)
    if steps is not None and count:
        _check_last_step(steps, episodes, kept, array.shape)
    return Grid(env_ids, array, rl_step, episodes, mode, steps, kept, times, count, values.notes)


def _mode(episode: Any, env_step: Any, *, auto_start_from_one: bool) -> StepMode:
    if not isinstance(auto_start_from_one, _BOOLS):
        raise InvalidTypeError(f"auto_start_from_one is {auto_start_from_one!r:.60}, not a bool")
    if isinstance(episode, _BOOLS):
        raise InvalidTypeError(
            f"episode is the bool {episode}, not an integer", hint="did you mean evaluation=?"
        )
    if not auto_start_from_one:
        return StepMode.AUTO if env_step is None else StepMode.EXPLICIT
    if env_step is not None:
        raise ValidationError("auto_start_from_one numbers the steps itself: env_step must be None")
    if episode is None:
        raise ValidationError(
            "auto_start_from_one needs episode: an axis without episodes starts at 0"
        )
    return StepMode.AUTO_FROM_ONE


def _mask(mask: Any) -> BoolArray:
    """Own a bool mask of whatever shape."""
    array = np.asarray(mask) if isinstance(mask, bool | list | tuple) else to_numpy(mask, "mask")
    if array.dtype != np.bool_ and array.size:
        raise InvalidTypeError(f"mask is an array of {array.dtype}, not of bool")
    return np.array(array, dtype=np.bool_, order="C")


class _Shape:
    """How the caller's shapes lie on the grid [M, T]."""

    def __init__(self, m: int, given: tuple[int, ...], *, is_time_major: bool) -> None:
        self.m = m
        self.given = given
        self.is_time_major = is_time_major
        self.t = self._steps_count()

    def _steps_count(self) -> int:
        m, given = self.m, self.given
        if len(given) == 2:
            rows, t = given[::-1] if self.is_time_major else given
            if rows == m:
                return t
        elif len(given) == 1:
            if m == 1:
                return given[0]
            if given[0] == m:
                return 1
        elif not given and m == 1:
            return 1
        wanted = "a scalar, [T] or " if m == 1 else f"[{m}] or "
        grid = f"[T, {m}]" if self.is_time_major else f"[{m}, T]"
        raise InvalidShapeError(
            f"value has shape {list(given)}; for {m} env id{'' if m == 1 else 's'} "
            f"it must be {wanted}{grid}",
            hint="values are not broadcast across environments",
        )

    def grid(self, array: AnyArray) -> AnyArray:
        """Turn an owned array of the value's shape into C-contiguous [M, T]."""
        if self.is_time_major and array.ndim == 2:
            return np.ascontiguousarray(array.T)
        return array.reshape(self.m, self.t)

    def fits_rows(self, shape: tuple[int, ...]) -> bool:
        """True for [M], one element per environment."""
        return shape == (self.m,)

    def fits_points(self, shape: tuple[int, ...]) -> bool:
        """True for [M, T] in the caller's orientation, and for [T] with one environment."""
        full = (self.t, self.m) if self.is_time_major else (self.m, self.t)
        return shape == full or (self.m == 1 and shape == (self.t,))


def _broadcast(x: Any, what: str, shape: _Shape, kept: BoolArray | None) -> int | Int64Array:
    """One integer, [M] or [M, T]; a 1-D array that could be either is [M]."""
    is_time = what == "timestamp"
    if is_scalar(x):
        return coerce_time(x, what) if is_time else coerce_integer(x, what)
    coerce = coerce_times if is_time else coerce_integers
    given = shape_of(x, what)
    if shape.fits_rows(given):
        rows = None if kept is None else np.asarray(kept.any(axis=1))
        return coerce(x, what, keep=rows)
    if not shape.fits_points(given):
        full = [shape.t, shape.m] if shape.is_time_major else [shape.m, shape.t]
        raise InvalidShapeError(
            f"{what} has shape {list(given)}, value has shape {list(shape.given)}; "
            f"it must be a scalar, [{shape.m}] or {full}"
            + (f" or [{shape.t}]" if shape.m == 1 else "")
        )
    keep = kept
    if keep is not None and len(given) == 2 and shape.is_time_major:
        keep = keep.T
    elif keep is not None:
        keep = keep.reshape(given)
    array = coerce(x, what, keep=keep)
    if shape.is_time_major and array.ndim == 2:
        return np.ascontiguousarray(array.T)
    return array.reshape(shape.m, shape.t)


def _episodes(
    episode: Any, shape: _Shape, kept: BoolArray | None, *, are_steps_exact: bool
) -> int | Int64Array | EpisodeSpans | None:
    """One episode, [M] or [M, T]; a whole integer grid as its runs, where those say enough."""
    if episode is None:
        return None
    if (
        type(episode) is np.ndarray
        and episode.ndim == 2
        and episode.dtype.kind in "iu"
        and episode.size
        and kept is None
        and not are_steps_exact
        and shape.fits_points(episode.shape)
    ):
        return episode_spans(episode.T if shape.is_time_major else episode, "episode")
    return _broadcast(episode, "episode", shape, kept)


def _check_last_step(
    steps: int | Int64Array,
    episodes: int | Int64Array | EpisodeSpans | None,
    kept: BoolArray | None,
    shape: tuple[int, ...],
) -> None:
    """Refuse starts whose segment would pass 2**63-1; exact steps were checked one by one."""
    if isinstance(steps, np.ndarray) and steps.ndim == 2:
        return
    m, t = shape
    top = int(steps.max()) if isinstance(steps, np.ndarray) else steps
    if top <= STEP_MAX - (t - 1):
        return
    # Close to the end: count the points of each (environment, episode).
    cells = np.ones(shape, dtype=bool) if kept is None else kept
    row = np.broadcast_to(np.arange(m)[:, None], shape)[cells]
    start = np.broadcast_to(np.reshape(steps, (-1, 1)), shape)[cells]
    if isinstance(episodes, EpisodeSpans):
        episodes = episodes.as_grid(shape)
    number = np.zeros(1, np.int64) if episodes is None else np.asarray(episodes)
    number = number if number.ndim == 2 else number.reshape(-1, 1)
    unit = np.stack([row, np.broadcast_to(number, shape)[cells]])
    _, first, count = np.unique(unit, axis=1, return_index=True, return_counts=True)
    for position, points in zip(first.tolist(), count.tolist(), strict=True):
        if int(start[position]) > STEP_MAX - (points - 1):
            raise InvalidStepError(
                f"env_step {int(start[position])} and {points} points of one segment "
                "would pass 2**63-1"
            )
