"""The highest step, rl_step and episode that this writer knows of: seeds plus what it logged.

Owned by the engine thread. Automatic numbers are predicted: exact while this writer is the only
one of the series, which is when they are asked for.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from metrana_async.wire.model import AUTOMATIC, Int64Array, PointTable, SegmentTable
from metrana_async.writers.registry import SeriesRegistry

_NEVER: Final = -1


class _Tables(Protocol):
    """The part of a lane's load that is looked at."""

    points: list[PointTable]
    segments: list[SegmentTable]


class LastSeen:
    """Maxima per series and per environment, in arrays indexed by their numbers."""

    def __init__(self, registry: SeriesRegistry) -> None:
        self._registry = registry
        self._step = np.zeros(0, np.int64)
        self._seeds_taken = 0
        self._rl_step = np.zeros(0, np.int64)
        self._episode = np.zeros(0, np.int64)
        self._automatic_episode: dict[int, Int64Array] = {}

    def last_step(self, series_no: int) -> int | None:
        """Highest step of a STANDARD series, None where there is none."""
        logged = int(self._step[series_no]) if series_no < len(self._step) else _NEVER
        last = max(logged, self._registry.seeded_last_step.get(series_no, _NEVER))
        return None if last == _NEVER else last

    def last_rl_step_and_episode(self, env_no: int) -> tuple[int | None, int | None]:
        """Highest rl_step and highest episode of an environment, each None where there is none."""
        rl_step, episode = self._registry.seeded_environments.get(env_no, (_NEVER, _NEVER))
        if env_no < len(self._rl_step):
            rl_step = max(rl_step, int(self._rl_step[env_no]))
            episode = max(episode, int(self._episode[env_no]))
        return (None if rl_step == _NEVER else rl_step, None if episode == _NEVER else episode)

    def set_environments_aside(self) -> tuple[Int64Array, Int64Array]:
        """Forget what was logged of environments, and return it for `add_environments`."""
        aside = self._rl_step, self._episode
        self._rl_step, self._episode = np.zeros(0, np.int64), np.zeros(0, np.int64)
        return aside

    def add_environments(self, rl_step: Int64Array, episode: Int64Array) -> None:
        """Take in maxima by env_no, -1 where there is none."""
        if len(rl_step):
            self._note_environments(np.arange(len(rl_step)), rl_step, episode)

    def note(self, load: _Tables) -> None:
        """Take in the tables of one lane, in call order."""
        for table in load.points:
            if table.env is None:
                self._note_steps(table.series, table.step)
            else:
                self._note_episodes(table)
        for segments in load.segments:
            self._note_environments(segments.env, segments.rl_step, segments.episode)

    def _note_steps(self, series: Int64Array, step: Int64Array) -> None:
        self._step = _grown(self._step, self._registry.series_count)
        self._take_seeds()
        is_automatic = step == AUTOMATIC
        if is_automatic.all():
            added = np.bincount(series)
            self._step[: len(added)] += added
        elif not is_automatic.any():
            np.maximum.at(self._step, series, step)
        else:
            touched = np.unique(series)
            self._step[touched] = _followed(self._step[touched], series, step, is_automatic)

    def _take_seeds(self) -> None:
        seeded = self._registry.seeded_last_step
        if len(seeded) != self._seeds_taken:
            self._seeds_taken = len(seeded)
            np.maximum.at(self._step, list(seeded.keys()), list(seeded.values()))

    def _note_episodes(self, table: PointTable) -> None:
        env, rl_step = table.env, table.rl_step
        assert env is not None, "an EPISODE table has environments"
        assert rl_step is not None, "an EPISODE table has rl_steps"
        is_automatic = table.step == AUTOMATIC
        explicit = np.where(is_automatic, _NEVER, table.step)
        self._note_environments(env, rl_step, explicit)
        for series_no in np.unique(table.series[is_automatic]).tolist():
            mine = env[is_automatic & (table.series == series_no)]
            last = self._automatic_episodes(series_no)
            added = np.bincount(mine)
            last[: len(added)] += added
            np.maximum.at(self._episode, mine, last[mine])

    def _automatic_episodes(self, series_no: int) -> Int64Array:
        known = self._automatic_episode.get(series_no)
        if known is None:
            known = np.full(self._registry.envs_count, _NEVER, dtype=np.int64)
            for (seeded_series, env_no), episode in self._registry.seeded_episodes.items():
                if seeded_series == series_no:
                    known[env_no] = episode
        known = self._automatic_episode[series_no] = _grown(known, self._registry.envs_count)
        return known

    def _note_environments(self, env: Int64Array, rl_step: Int64Array, episode: Int64Array) -> None:
        self._rl_step = _grown(self._rl_step, self._registry.envs_count)
        self._episode = _grown(self._episode, self._registry.envs_count)
        np.maximum.at(self._rl_step, env, rl_step)
        np.maximum.at(self._episode, env, episode)


def _grown(array: Int64Array, size: int) -> Int64Array:
    if len(array) >= size:
        return array
    extra = max(size, 2 * len(array)) - len(array)
    return np.concatenate([array, np.full(extra, _NEVER, dtype=np.int64)])


def _followed(
    last: Int64Array, series: Int64Array, step: Int64Array, is_automatic: Int64Array
) -> Int64Array:
    """Where each series ends when explicit steps raise its cursor and automatic ones add one.

    An explicit step s followed by a automatic ones ends at least at s + a, and so does the start;
    the end is the greatest of these. `last` [k] holds the starts, sorted by series number.
    """
    order = np.argsort(series, kind="stable")
    automatic = is_automatic[order].astype(np.int64)
    begins = np.flatnonzero(np.diff(series[order], prepend=_NEVER))
    total = np.add.reduceat(automatic, begins)
    running = np.cumsum(automatic)
    ends = np.append(begins[1:], len(order))
    after = np.repeat(running[ends - 1], ends - begins) - running
    reached = np.where(automatic == 1, _NEVER, step[order] + after)
    return np.maximum(last + total, np.maximum.reduceat(reached, begins))
