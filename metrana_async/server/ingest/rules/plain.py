"""The vector pass over ENV_STEP segments: finds the plain environments and takes them in at once.

An environment is *plain* in a table when each of its segments either continues its unit behind
what the same writer stored last, or begins an episode above every one the environment had. Then no
rule can drop, restart or warn, and numbers follow from cumulative sums.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from metrana_async.server.ingest.rules.unit_table import Segments, UnitTable
from metrana_async.server.ingest.rules.units import (
    UNIT_COUNT,
    UNIT_ENV,
    UNIT_EPISODE,
    UNIT_FIRST_RL,
    UNIT_GENERATION,
    UNIT_IS_SHARED,
    UNIT_LAST_STEP,
    UNIT_W_FIRST_MINOR,
    UNIT_W_FIRST_RL,
    UNIT_W_LAST_MINOR,
    UNIT_W_LAST_RL,
    UNIT_WRITER,
    step_base,
)
from metrana_async.wire.model import Int64Array, StepMode

BoolArray = npt.NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class PlainPass:
    """One pass over one table: `is_plain` [k] in lane order, and `absorb` for those.

    Columns are held in environment order (`order`), stable, so that the segments of one
    environment, and of one unit, lie side by side.
    """

    def __init__(
        self,
        table: UnitTable,
        segments: Segments,
        writer: int,
        *,
        is_live: bool,
        generation: Int64Array | None = None,
    ) -> None:
        self._table = table
        self._writer = writer
        self._mode = segments.mode
        env = segments.env
        rises = env[1:] - env[:-1]
        lowest = int(rises.min(initial=1))
        # One segment per environment is what a vector environment logs: nothing to group then.
        self._is_flat = lowest > 0
        self._order = None if lowest >= 0 else np.argsort(env, kind="stable")
        chosen = segments if self._order is None else segments.take(self._order)
        self._env, self._episode, self._rl = chosen.env, chosen.episode, chosen.rl_step
        self._start, self._count = chosen.start, chosen.count
        self._end = chosen.start + chosen.count - 1
        if generation is not None and self._order is not None:
            generation = generation[self._order]
        self._split(is_live=is_live, generation=generation)

    def _split(self, *, is_live: bool, generation: Int64Array | None) -> None:
        """Mark unit heads and environment heads, and decide environment by environment."""
        k = len(self._env)
        if self._is_flat:
            self._heads = np.arange(k)
            fits = np.ones(k, np.bool_)
        else:
            fits = self._split_rows()
        self._known_rows = self._table.latest_row[self._env[self._heads]]
        head_fits = self._judge_heads(is_live=is_live)
        if generation is not None:
            fits &= generation == self._expected_generation()
        if self._is_flat:
            self._plain_env = fits & head_fits
            self._plain_sorted = self._plain_env
        else:
            self._plain_env = np.logical_and.reduceat(fits, self._heads) & head_fits
            sizes = np.diff(np.append(self._heads, k))
            self._plain_sorted = np.repeat(self._plain_env, sizes)
        self.is_plain = self._unsort(self._plain_sorted)

    def _split_rows(self) -> BoolArray:
        """Find heads; whether each other segment goes on behind the one before it."""
        k = len(self._env)
        is_head = np.ones(k, np.bool_)
        is_head[1:] = self._env[1:] != self._env[:-1]
        is_same = np.zeros(k, np.bool_)
        is_same[1:] = ~is_head[1:] & (self._episode[1:] == self._episode[:-1])
        rl, last_rl = self._rl[1:], self._rl[:-1]
        is_behind = self._start[1:] > self._end[:-1]
        if self._mode is StepMode.EXPLICIT:
            grows = is_behind & (rl >= last_rl)
        else:
            grows = (rl > last_rl) | ((rl == last_rl) & is_behind)
        fits = np.ones(k, np.bool_)
        is_later = self._episode[1:] > self._episode[:-1]
        fits[1:] = is_head[1:] | np.where(is_same[1:], grows, is_later)
        self._heads = np.flatnonzero(is_head)
        self._is_unit_head = ~is_same
        return fits

    def _expected_generation(self) -> Int64Array:
        """The generation that plain segments go to: that of a known unit, 0 of a new one."""
        known = self._known(UNIT_GENERATION)
        if self._is_flat:
            return known
        k = len(self._env)
        sizes = np.diff(np.append(self._heads, k))
        unit_of = np.cumsum(self._is_unit_head)
        is_first_unit = unit_of == np.repeat(unit_of[self._heads], sizes)
        return np.where(is_first_unit, np.repeat(known, sizes), 0)

    def _judge_heads(self, *, is_live: bool) -> BoolArray:
        """Whether each environment's first segment is plain against its newest unit."""
        heads, table = self._heads, self._table
        is_flat = self._is_flat
        episode = self._episode if is_flat else self._episode[heads]
        furthest = table.max_episode[self._env if is_flat else self._env[heads]]
        is_new = episode > furthest
        self._is_known = (episode == furthest) & (self._known_rows >= 0)
        self._has_known = bool(self._is_known.any())
        self._all_known = self._has_known and bool(self._is_known.all())
        if not self._has_known:
            return is_new
        rl = self._rl if is_flat else self._rl[heads]
        start = self._start if is_flat else self._start[heads]
        last_rl = self._known(UNIT_W_LAST_RL)
        if self._mode is StepMode.EXPLICIT:
            continues = (start > self._known(UNIT_LAST_STEP)) & (rl >= last_rl)
        else:
            # With first_rl <= last_rl, nothing behind the last point can be an opening.
            is_behind = start > self._known(UNIT_W_LAST_MINOR)
            continues = (rl > last_rl) | ((rl == last_rl) & is_behind)
            continues &= self._known(UNIT_FIRST_RL) <= last_rl
        continues &= self._known(UNIT_WRITER) == self._writer
        if not is_live:
            continues &= self._known(UNIT_IS_SHARED) == 0
        fits: BoolArray = is_new | (self._is_known & continues)
        return fits

    def _known(self, column: int) -> Int64Array:
        """A column of the newest units per environment head; 0 where the unit is new."""
        if not self._has_known:
            return np.zeros(len(self._known_rows), np.int64)
        if self._all_known:
            whole: Int64Array = self._table.units[column].take(self._known_rows)
            return whole
        # Row -1 stands for none: it reads the last row, and is masked.
        known = self._table.units[column].take(self._known_rows, mode="wrap")
        return np.where(self._is_known, known, 0)

    def _unsort(self, column: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        if self._order is None:
            return column
        back = np.empty_like(column)
        back[self._order] = column
        return back

    def absorb(self) -> tuple[Int64Array, Int64Array]:
        """Take in the plain segments; (step, generation) of every segment, lane order.

        Rows of environments that are not plain hold anything.
        """
        known_rows = np.where(self._is_known, self._known_rows, -1)
        if self._is_flat:
            base, generation = self._known(UNIT_COUNT), self._known(UNIT_GENERATION)
            is_explicit = self._mode is StepMode.EXPLICIT
            step = self._start if is_explicit else base + step_base(self._mode)
            self._write(
                heads=self._heads,
                lasts=self._heads,
                known_rows=known_rows,
                is_plain=self._plain_env,
                counts=base + self._count,
                step=step,
            )
            return step, generation
        unit_heads = np.flatnonzero(self._is_unit_head)
        unit_of = np.cumsum(self._is_unit_head) - 1
        head_units = unit_of[self._heads]
        base = np.zeros(len(unit_heads), np.int64)
        base[head_units] = self._known(UNIT_COUNT)
        generation = np.zeros(len(unit_heads), np.int64)
        generation[head_units] = self._known(UNIT_GENERATION)
        if self._mode is StepMode.EXPLICIT:
            step = self._start
        else:
            before = np.cumsum(self._count) - self._count
            step = before + (base - before[unit_heads] + step_base(self._mode))[unit_of]
        unit_rows = np.full(len(unit_heads), -1, np.int64)
        unit_rows[head_units] = known_rows
        self._write(
            heads=unit_heads,
            lasts=np.append(unit_heads[1:], len(self._env)) - 1,
            known_rows=unit_rows,
            is_plain=self._plain_sorted[unit_heads],
            counts=base + np.add.reduceat(self._count, unit_heads),
            step=step,
        )
        return self._unsort(step), self._unsort(generation[unit_of])

    def _write(
        self,
        *,
        heads: npt.NDArray[np.intp],
        lasts: npt.NDArray[np.intp],
        known_rows: Int64Array,
        is_plain: BoolArray,
        counts: Int64Array,
        step: Int64Array,
    ) -> None:
        table = self._table
        is_known = is_plain & (known_rows >= 0)
        is_new = is_plain & (known_rows < 0)
        if is_new.any():
            rows = table.allocate(int(np.count_nonzero(is_new)))
            first = heads[is_new]
            units = table.units
            units[UNIT_ENV][rows] = self._env[first]
            units[UNIT_EPISODE][rows] = self._episode[first]
            units[UNIT_GENERATION][rows] = 0
            units[UNIT_FIRST_RL][rows] = units[UNIT_W_FIRST_RL][rows] = self._rl[first]
            units[UNIT_W_FIRST_MINOR][rows] = self._start[first]
            units[UNIT_WRITER][rows] = self._writer
            units[UNIT_IS_SHARED][rows] = 0
            self._advance(rows, lasts[is_new], counts[is_new], step)
            self._register(first, rows)
        if is_known.all():
            self._advance(known_rows, lasts, counts, step)
        elif is_known.any():
            self._advance(known_rows[is_known], lasts[is_known], counts[is_known], step)
        furthest = self._rl if self._is_flat else np.maximum.reduceat(self._rl, self._heads)
        envs = self._env[self._heads[self._plain_env]]
        table.max_rl[envs] = np.maximum(table.max_rl[envs], furthest[self._plain_env])

    def _advance(
        self, rows: Int64Array, lasts: npt.NDArray[np.intp], counts: Int64Array, step: Int64Array
    ) -> None:
        units = self._table.units
        units[UNIT_COUNT][rows] = counts
        units[UNIT_LAST_STEP][rows] = step[lasts] + self._count[lasts] - 1
        units[UNIT_W_LAST_RL][rows] = self._rl[lasts]
        units[UNIT_W_LAST_MINOR][rows] = self._end[lasts]

    def _register(self, first: npt.NDArray[np.intp], rows: Int64Array) -> None:
        """Make new units known: per environment the last is its newest, the rest are older."""
        table = self._table
        envs, episodes = self._env[first], self._episode[first]
        is_last = np.ones(len(first), np.bool_)
        is_last[:-1] = envs[1:] != envs[:-1]
        newest_envs = envs[is_last]
        displaced = table.latest_row[newest_envs]
        had = displaced >= 0
        moved_envs, moved_rows = newest_envs[had], displaced[had]
        moved = zip(
            np.concatenate([moved_envs, envs[~is_last]]).tolist(),
            np.concatenate([table.max_episode[moved_envs], episodes[~is_last]]).tolist(),
            strict=True,
        )
        numbers = np.concatenate([moved_rows, rows[~is_last]]).tolist()
        table.older_rows.update(zip(moved, numbers, strict=True))
        table.latest_row[newest_envs] = rows[is_last]
        table.max_episode[newest_envs] = episodes[is_last]
