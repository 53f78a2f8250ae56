"""Positions within an rl_step: how automatic env steps are numbered by the client.

For every unit (series, env, episode) the points of one rl_step are 0, 1, 2, … across calls, and
start at 0 again when the unit is logged under another rl_step. The server turns (rl_step,
position) into the visible env step. Owned by the engine thread.

The latest unit of each (series, env) lies in arrays, so that a call over thousands of
environments is a few numpy operations. Units that another episode displaced go to one dict, least
recently displaced first; it holds at least `units_kept` of them and forgets the oldest in bulk.
A forgotten unit starts at 0 again, which the server treats as any other opening.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice, repeat
from typing import Any, Final

import numpy as np

from metrana_async.wire.model import Int64Array

UNITS_KEPT: Final = 100_000

_NO_UNIT: Final = -2  # below NO_EPISODE, which is a unit


class _LatestUnits:
    """Per env_no of one series: its latest unit, and the greatest episode it ever had."""

    def __init__(self) -> None:
        self.episode = np.zeros(0, np.int64)
        self.rl_step = np.zeros(0, np.int64)
        self.following = np.zeros(0, np.int64)
        self.highest = np.zeros(0, np.int64)

    def reserve(self, envs_count: int) -> None:
        size = len(self.episode)
        if envs_count <= size:
            return
        extra = max(envs_count, 2 * size) - size
        for name, filler in (
            ("episode", _NO_UNIT),
            ("rl_step", 0),
            ("following", 0),
            ("highest", _NO_UNIT),
        ):
            grown = np.concatenate([getattr(self, name), np.full(extra, filler, np.int64)])
            setattr(self, name, grown)


class MinorNumbering:
    """Hands out positions within the rl_step, remembering at least `units_kept` units."""

    def __init__(self, units_kept: int = UNITS_KEPT) -> None:
        self._units_kept = units_kept
        self._latest: dict[int, _LatestUnits] = {}
        self._displaced: dict[tuple[int, int, int], tuple[int, int]] = {}

    def starts(
        self, series_no: int, rl_step: int, env: Int64Array, episode: Int64Array, count: Int64Array
    ) -> Int64Array:
        """Take `count[i]` positions for each unit and return the first of each.

        Args:
            series_no: the series.
            rl_step: the training update of the call.
            env: int64 [k], env_no of each unit; the units of one environment lie together, in
                the order in which they were last logged.
            episode: int64 [k]; a unit occurs once.
            count: int64 [k], points of each unit.
        """
        latest = self._latest.setdefault(series_no, _LatestUnits())
        latest.reserve(int(env.max()) + 1)
        known = latest.episode[env]
        is_latest = known == episode
        start = np.where(is_latest & (latest.rl_step[env] == rl_step), latest.following[env], 0)
        # Only an episode that is not above all its environment ever had can have been displaced.
        may_return = ~is_latest & (episode <= latest.highest[env])
        if may_return.any():
            where = np.flatnonzero(may_return)
            start[where] = self._take_back(series_no, rl_step, env[where], episode[where])
        self._advance(series_no, rl_step, (env, episode, start + count), latest)
        return start

    def starts_of_calls(
        self,
        series_no: int,
        rl_steps: Int64Array,
        env: Int64Array,
        episode: Int64Array,
        counts: Int64Array,
    ) -> Int64Array | None:
        """Take positions for K calls over the same M environments, as `starts` call by call.

        Answers None, having taken nothing, where an environment's episode falls or may return:
        then the calls must be numbered one by one.

        Args:
            series_no: the series.
            rl_steps: int64 [K]; each differs from the one before it.
            env: int64 [M], distinct env_nos.
            episode: int64 [K, M].
            counts: int64 [K], points of each environment in each call.

        Returns:
            int64 [K, M], the first position of each (call, environment).
        """
        latest = self._latest.setdefault(series_no, _LatestUnits())
        latest.reserve(int(env.max()) + 1)
        is_same = episode[1:] == episode[:-1]
        # An episode above all that its environment ever had is new, so it begins at 0.
        is_new = (episode[1:] > episode[:-1]) & (episode[1:] > latest.highest[env])
        if not (is_same | is_new).all():
            return None
        start = np.zeros(episode.shape, dtype=np.int64)
        start[0] = self.starts(
            series_no, int(rl_steps[0]), env, episode[0], np.full(len(env), counts[0])
        )
        # Behind the first call every unit is new or under another rl_step: all begin at 0.
        following = start + counts[:, None]
        if not is_same.all():
            call, at = np.nonzero(~is_same)
            self._displace(
                series_no, env[at], episode[call, at], rl_steps[call].tolist(), following[call, at]
            )
            latest.highest[env] = np.maximum(latest.highest[env], episode[-1])
        latest.episode[env] = episode[-1]
        latest.rl_step[env] = rl_steps[-1]
        latest.following[env] = following[-1]
        return start

    def _advance(
        self,
        series_no: int,
        rl_step: int,
        units: tuple[Int64Array, Int64Array, Int64Array],
        latest: _LatestUnits,
    ) -> None:
        env, episode, following = units
        is_last = np.empty(len(env), dtype=bool)  # of its environment, in this call
        is_last[-1] = True
        np.not_equal(env[1:], env[:-1], out=is_last[:-1])
        last = slice(None) if is_last.all() else np.flatnonzero(is_last)
        last_env, last_episode = env[last], episode[last]
        old = latest.episode[last_env]
        moved = np.flatnonzero((old != _NO_UNIT) & (old != last_episode))
        if moved.size:
            gone = last_env[moved]
            self._displace(
                series_no, gone, old[moved], latest.rl_step[gone].tolist(), latest.following[gone]
            )
        if not is_last.all():
            passed = np.flatnonzero(~is_last)
            self._displace(
                series_no, env[passed], episode[passed], repeat(rl_step), following[passed]
            )
            np.maximum.at(latest.highest, env, episode)
        else:
            latest.highest[last_env] = np.maximum(latest.highest[last_env], last_episode)
        latest.episode[last_env] = last_episode
        latest.rl_step[last_env] = rl_step
        latest.following[last_env] = following[last]

    def _displace(
        self,
        series_no: int,
        env: Int64Array,
        episode: Int64Array,
        rl_steps: Iterable[int],
        following: Int64Array,
    ) -> None:
        # zip, map and update run in C: no Python statement per unit.
        keys = list(zip(repeat(series_no), env.tolist(), episode.tolist(), strict=False))
        self._forget(keys)  # so that they come back at the young end
        self._displaced.update(zip(keys, zip(rl_steps, following.tolist(), strict=False),
                                   strict=True))  # fmt: skip
        if len(self._displaced) > 2 * self._units_kept:
            # In bulk, since a dict's front is slow to walk after single removals.
            excess = len(self._displaced) - self._units_kept
            self._forget(list(islice(self._displaced, excess)))

    def _forget(self, keys: list[tuple[int, int, int]]) -> None:
        _run(map(self._displaced.pop, keys, repeat(None)))

    def _take_back(
        self, series_no: int, rl_step: int, env: Int64Array, episode: Int64Array
    ) -> Int64Array:
        """Positions that displaced units have reached; 0 for the unknown and the moved on."""
        keys = zip(repeat(series_no), env.tolist(), episode.tolist(), strict=False)
        found = list(map(self._displaced.pop, keys, repeat((-1, 0))))
        reached = np.array(found, dtype=np.int64)
        return np.where(reached[:, 0] == rl_step, reached[:, 1], 0)


def _run(calls: Iterable[Any]) -> None:
    """Exhaust an iterator at C speed."""
    deque(calls, maxlen=0)
