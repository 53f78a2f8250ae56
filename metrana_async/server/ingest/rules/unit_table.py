"""The table of a series' ENV_STEP units: where the state of `units` lies, and how it is found.

The newest episode of an environment is found by its row number; older ones through a dict, bounded
by `trim`; what was trimmed is rebuilt from the store when it is needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from metrana_async.server.ingest.rules.units import (
    UNIT_COLUMNS,
    UNIT_ENV,
    UNIT_EPISODE,
    UNIT_IS_SHARED,
    Others,
    Segment,
    Unit,
)
from metrana_async.wire.model import Int64Array, StepMode

SHARED_UNITS_KEPT: Final = 16_384

NO_EPISODE_YET: Final = -2
"""Below NO_EPISODE, so that the axis without episodes is new at first as well."""

MODE_CODES: Final = {StepMode.AUTO: 1, StepMode.AUTO_FROM_ONE: 2, StepMode.EXPLICIT: 3}
"""Pinned mode of an environment in `UnitTable.mode`; 0 = none yet."""


@dataclass(slots=True)
class Segments:
    """Segment columns, int64 [k] each, of one writer in lane order."""

    mode: StepMode
    env: Int64Array
    episode: Int64Array
    rl_step: Int64Array
    start: Int64Array
    count: Int64Array

    def __len__(self) -> int:
        return len(self.env)

    def take(self, rows: Int64Array) -> Segments:
        """The segments at these rows."""
        columns = (self.env, self.episode, self.rl_step, self.start, self.count)
        return Segments(self.mode, *(column[rows] for column in columns))


ColdUnits = Callable[[Int64Array, Int64Array], "Iterable[tuple[Unit, Others]]"]
"""Distinct (env, episode) pairs -> the states of those that the store holds, rebuilt from it."""


@dataclass(slots=True)
class UnitTable:
    """Per environment: columns by env_no. Per unit: a column of `units` (see rules.units)."""

    mode: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    max_episode: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    max_rl: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    cold_episode: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Greatest episode that was trimmed; up to it a missing unit may lie in the store."""
    latest_row: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    units: Int64Array = field(default_factory=lambda: np.empty((UNIT_COLUMNS, 0), np.int64))
    rows_used: int = 0
    free_rows: list[int] = field(default_factory=list)
    older_rows: dict[tuple[int, int], int] = field(default_factory=dict)
    others: dict[int, Others] = field(default_factory=dict)
    trim_from: int = 0
    """No trim below this many older units: the last one could not get further."""

    def reserve(self, envs_count: int) -> None:
        """Make room for environments 0..envs_count-1; new ones are empty."""
        have = len(self.mode)
        if envs_count <= have:
            return
        more = max(envs_count, 2 * have) - have
        self.mode = np.concatenate([self.mode, np.zeros(more, np.int8)])
        never = np.full(more, NO_EPISODE_YET, np.int64)
        self.max_episode = np.concatenate([self.max_episode, never])
        self.cold_episode = np.concatenate([self.cold_episode, never])
        self.max_rl = np.concatenate([self.max_rl, np.full(more, -1, np.int64)])
        self.latest_row = np.concatenate([self.latest_row, np.full(more, -1, np.int64)])

    def allocate(self, rows_count: int) -> Int64Array:
        """Rows of `units` that are not in use."""
        reused = min(len(self.free_rows), rows_count)
        taken = [self.free_rows.pop() for _ in range(reused)]
        first = self.rows_used
        self.rows_used += rows_count - reused
        if self.rows_used > self.units.shape[1]:
            room = max(self.rows_used, 2 * self.units.shape[1], 64)
            grown = np.zeros((UNIT_COLUMNS, room), np.int64)
            grown[:, :first] = self.units[:, :first]
            self.units = grown
        fresh = np.arange(first, self.rows_used, dtype=np.int64)
        return np.concatenate([np.array(taken, np.int64), fresh]) if reused else fresh

    def warm(self, envs: Int64Array, episodes: Int64Array, cold_units: ColdUnits) -> None:
        """Bring back those of these units that were trimmed, all of them in one look-up.

        A resumed run returns to thousands of old episodes at once.
        """
        is_cold = (episodes <= self.cold_episode[envs]) & (episodes < self.max_episode[envs])
        if not is_cold.any():
            return
        known = self.older_rows
        asked = dict.fromkeys(
            zip(envs[is_cold].tolist(), episodes[is_cold].tolist(), strict=True)
        )  # fmt: skip
        missing = [key for key in asked if key not in known]
        if not missing:
            return
        pairs = np.array(missing, np.int64)
        for unit, others in cold_units(pairs[:, 0], pairs[:, 1]):
            self.keep(None, unit, others, Segment(unit[UNIT_ENV], unit[UNIT_EPISODE], -1, 0, 0))

    def find(self, env: int, episode: int) -> tuple[int | None, Unit | None, Others]:
        """Row, state and other writers of a unit; (None, None, empty) when it is new.

        Trimmed units are to be warmed before.
        """
        furthest = int(self.max_episode[env])
        row: int | None = None
        if episode == furthest:
            row = int(self.latest_row[env])
        elif episode < furthest:
            row = self.older_rows.get((env, episode))
        if row is None:
            return None, None, Others()
        unit = self.units[:, row].tolist()
        # An empty Others is made for the judge to fill and kept only when it was filled.
        return row, unit, self.others.get(row) or Others()

    def keep(self, row: int | None, unit: Unit, others: Others, segment: Segment) -> int:
        """Write a unit back; a unit without a row gets one and is registered."""
        if row is None:
            row = int(self.allocate(1)[0])
            self._register(segment.env, segment.episode, row)
        self.units[:, row] = unit
        if others.spans or others.past:
            self.others[row] = others
        self.note_rl_step(segment.env, segment.rl_step)
        return row

    def is_cold(self, env: int, episode: int) -> bool:
        """True when the unit is not here but may lie in the store, trimmed."""
        return (
            episode <= self.cold_episode[env]
            and episode < self.max_episode[env]
            and (env, episode) not in self.older_rows
        )

    def note_rl_step(self, env: int, rl_step: int) -> None:
        """Raise the environment's greatest rl_step."""
        self.max_rl[env] = max(int(self.max_rl[env]), rl_step)

    def _register(self, env: int, episode: int, row: int) -> None:
        furthest = int(self.max_episode[env])
        if episode > furthest:
            if self.latest_row[env] >= 0:
                self.older_rows[env, furthest] = int(self.latest_row[env])
            self.latest_row[env], self.max_episode[env] = row, episode
        else:
            self.older_rows[env, episode] = row

    def trim(self, units_kept: int) -> None:
        """Forget about `units_kept` and more of the longest known units that one writer wrote.

        Never an environment's newest. Units of several writers go only beyond SHARED_UNITS_KEPT:
        they are few, and are where every point's position matters. Only what is committed may be
        forgotten: it is rebuilt from the store.
        """
        # Trimmed in steps of a quarter, so that looking through all costs little per commit.
        if len(self.older_rows) <= max(units_kept + units_kept // 4, self.trim_from):
            return
        rows = np.fromiter(self.older_rows.values(), np.int64, len(self.older_rows))
        is_shared = self.units[UNIT_IS_SHARED, rows] != 0
        going = [np.flatnonzero(~is_shared)[: len(rows) - units_kept]]
        going.append(np.flatnonzero(is_shared)[: max(int(is_shared.sum()) - SHARED_UNITS_KEPT, 0)])
        gone = rows[np.concatenate(going)]
        envs, episodes = self.units[UNIT_ENV, gone], self.units[UNIT_EPISODE, gone]
        np.maximum.at(self.cold_episode, envs, episodes)
        for key in zip(envs.tolist(), episodes.tolist(), strict=True):
            row = self.older_rows.pop(key)
            self.others.pop(row, None)
            self.free_rows.append(row)
        left = len(self.older_rows)
        self.trim_from = left + left // 4 if left > units_kept else 0
