"""The caller's rollout as arrays [B, T]: whatever its layout, type of flags, or order of rows.

Pure. Nothing is guessed: a square rollout looks the same both ways, so two-dimensional arrays come
with their layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from metrana_async.columns.arrays import AnyArray, BoolArray, first_position, is_sequence, to_numpy
from metrana_async.columns.integers import coerce_integers
from metrana_async.errors import (
    InvalidShapeError,
    InvalidTypeError,
    InvalidValueError,
    ValidationError,
)
from metrana_async.wire.model import Int64Array

Float64Array = npt.NDArray[np.float64]
_LAYOUTS: Final = ("MT", "TM")


@dataclass(frozen=True)
class Packing:
    """Where the rows of a long rollout lie in a grid [B, T], left-aligned by environment.

    Attributes:
        shape: of the caller's arrays.
        is_time_major: whether they are [T, B].
        order: int64 [N], the row (in time order) of each packed cell.
        cell: int64 [N], the flat cell of the grid for each of them.
        grid: shape of the grid.
    """

    shape: tuple[int, ...]
    is_time_major: bool
    order: Int64Array
    cell: Int64Array
    grid: tuple[int, int]

    def pack(self, array: AnyArray) -> AnyArray:
        """The caller's array as a grid; cells without a row hold 0."""
        packed = np.zeros(self.grid, dtype=array.dtype)
        packed.reshape(-1)[self.cell] = self._in_time_order(array)[self.order]
        return packed

    def _in_time_order(self, array: AnyArray) -> AnyArray:
        by_time = array.ndim < 2 or self.is_time_major
        return (array if by_time else array.T).reshape(-1)


@dataclass(frozen=True)
class Rollout:
    """One call's arrays, environment-major.

    Attributes:
        on_grid: the rewards in the shape that grids have for the caller: [M], [M, T] or [T, M] as
            given, not copied; packed to [B, T] where the rollout is long.
        values: float64 [B, T], the same environment-major; may alias the caller's.
        terminated: bool [B, T].
        truncated: bool [B, T].
        resets: bool [B, T], or None.
        env: int64 [B], the environment of each row, distinct.
        lengths: int64 [B], cells of each row that hold something; None where all do.
        layout: of the caller's arrays, "MT" also where they are one-dimensional.
        packing: how a long rollout was laid out; None for a grid.
    """

    on_grid: AnyArray
    values: Float64Array
    terminated: BoolArray
    truncated: BoolArray
    resets: BoolArray | None
    env: Int64Array
    lengths: Int64Array | None
    layout: str
    packing: Packing | None

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        rows, steps = self.values.shape
        return rows, steps


def read_rollout(
    rewards: Any,
    terminations: Any,
    truncations: Any,
    resets: Any = None,
    *,
    envs_count: int,
    envs: Any = None,
    layout: str | None = None,
) -> Rollout:
    """Check one call's arrays and turn them environment-major.

    Args:
        rewards: numbers, [M] or two-dimensional; with `envs` [B] or two-dimensional.
        terminations: bool (or 0 and 1) of that shape; None = all False.
        truncations: the same.
        resets: the same; None stays None.
        envs_count: M.
        envs: None, or the environment of each row: of the shape of `rewards`, or [B] where that is
            two-dimensional. Rows of one environment are in time order.
        layout: "MT" or "TM"; needed where `rewards` is two-dimensional.

    Raises:
        InvalidShapeError: shapes do not fit each other, or the layout is not said.
        InvalidTypeError, InvalidValueError: an element is not acceptable.
    """
    reward = _numbers(rewards, "rewards")
    is_time_major = _is_time_major(layout, reward)
    flags = [
        _flags(flag, what, reward.shape)
        for flag, what in (
            (terminations, "terminations"),
            (truncations, "truncations"),
            (resets, "resets"),
        )
    ]
    packing, lengths = None, None
    if envs is None:
        env = np.arange(envs_count)
        laid = [_grid(array, is_time_major=is_time_major) for array in (reward, *flags)]
        if laid[0].shape[0] != envs_count:
            grid = f"[T, {envs_count}]" if is_time_major else f"[{envs_count}, T]"
            raise InvalidShapeError(
                f"rewards has shape {list(reward.shape)}; "
                f"for {envs_count} environments it must be [{envs_count}] or {grid}",
                hint="rows of some of the environments come with envs=",
            )
    else:
        packing, env, lengths = _packing(
            _envs(envs, reward.shape, envs_count, is_time_major=is_time_major),
            reward.shape,
            is_time_major=is_time_major,
        )
        laid = [packing.pack(array) for array in (reward, *flags)]
    values, terminated, truncated, reset = laid
    return Rollout(
        on_grid=reward if packing is None else values,
        values=values.astype(np.float64, copy=False),
        terminated=terminated,
        truncated=truncated,
        resets=None if resets is None else reset,
        env=env,
        lengths=lengths,
        layout="TM" if is_time_major and packing is None else "MT",
        packing=packing,
    )


def _is_time_major(layout: str | None, reward: AnyArray) -> bool:
    if layout is not None and layout not in _LAYOUTS:
        raise ValidationError(f"layout is {layout!r}; it is 'MT' or 'TM'")
    if reward.ndim == 2 and layout is None:
        raise InvalidShapeError(
            f"rewards has shape {list(reward.shape)} and layout= is not given",
            hint="'TM' for [T, M] as most libraries have it, 'MT' for [M, T]",
        )
    if reward.ndim not in {1, 2}:
        raise InvalidShapeError(
            f"rewards has shape {list(reward.shape)}; it is one- or two-dimensional"
        )
    return reward.ndim == 2 and layout == "TM"


def _numbers(x: Any, what: str) -> AnyArray:
    array = _array(x, what)
    if array.dtype.kind not in "biuf":
        if array.dtype.name.startswith(("bfloat", "float")):  # ml_dtypes
            return array.astype(np.float32)
        raise InvalidTypeError(f"{what} is an array of {array.dtype}, not of numbers")
    return array


def _array(x: Any, what: str) -> AnyArray:
    if not is_sequence(x):
        return to_numpy(x, what)
    rows = [to_numpy(row, what) if not is_sequence(row) and np.ndim(row) else row for row in x]
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise InvalidShapeError(f"{what} is ragged") from error


def _flags(x: Any, what: str, shape: tuple[int, ...]) -> BoolArray:
    if x is None:
        return np.zeros(shape, dtype=bool)
    array = _array(x, what)
    if array.shape != shape:
        raise InvalidShapeError(
            f"{what} has shape {list(array.shape)}, rewards has shape {list(shape)}"
        )
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise InvalidTypeError(f"{what} is an array of {array.dtype}, not of bool")
    is_odd = (array != 0) & (array != 1)
    if is_odd.any():
        flat, where = first_position(is_odd)
        raise InvalidValueError(f"{what}{where} is {array.ravel()[flat]}, neither 0 nor 1")
    flags: BoolArray = array != 0
    return flags


def _grid(array: AnyArray, *, is_time_major: bool) -> AnyArray:
    if array.ndim == 1:
        array = array[:, None]
    return np.ascontiguousarray(array.T if is_time_major else array)


def _envs(envs: Any, shape: tuple[int, ...], envs_count: int, *, is_time_major: bool) -> Int64Array:
    """The environment of each row, in time order."""
    env = coerce_integers(envs, "envs")
    if env.shape != shape:
        width = shape[-1] if is_time_major else shape[0]
        if len(shape) != 2 or env.shape != (width,):
            raise InvalidShapeError(
                f"envs has shape {list(env.shape)}, rewards has shape {list(shape)}"
            )
        env = np.broadcast_to(env if is_time_major else env[:, None], shape)
    if env.size and int(env.max()) >= envs_count:
        flat, where = first_position(env >= envs_count)
        raise InvalidValueError(
            f"envs{where} is {env.ravel()[flat]}; there are {envs_count} environments"
        )
    return (env if env.ndim < 2 or is_time_major else env.T).reshape(-1)


def _packing(
    env: Int64Array, shape: tuple[int, ...], *, is_time_major: bool
) -> tuple[Packing, Int64Array, Int64Array]:
    order = np.argsort(env, kind="stable")
    by_env = env[order]
    begins = np.flatnonzero(np.diff(by_env, prepend=-1))
    lengths = np.diff(begins, append=len(by_env))
    width = int(lengths.max()) if len(lengths) else 0
    rank = np.arange(len(by_env)) - np.repeat(begins, lengths)
    cell = np.repeat(np.arange(len(begins)) * width, lengths) + rank
    packing = Packing(shape, is_time_major, order, cell, (len(begins), width))
    return packing, by_env[begins], lengths
