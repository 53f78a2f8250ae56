"""Positions within an rl_step: how automatic env steps are numbered by the client.

For every unit (series, env, episode) the points of one rl_step are 0, 1, 2, … across calls, and
start at 0 again when the unit is logged under another rl_step. The server turns (rl_step,
position) into the visible env step. Owned by the engine thread.

The latest unit of each (series, env) lies in arrays, so that a call over thousands of
environments is a few numpy operations. Units that another episode displaced are remembered apart
(`displaced`). A forgotten one starts at 0 again, which the server treats as any other opening.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from metrana_async.wire.model import Int64Array
from metrana_async.writers.displaced import DisplacedUnits

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

    def put(
        self, env: Int64Array, episode: Int64Array, rl_step: int | Int64Array, following: Int64Array
    ) -> None:
        """Make these the latest units of distinct environments."""
        self.episode[env] = episode
        self.rl_step[env] = rl_step
        self.following[env] = following
        self.highest[env] = np.maximum(self.highest[env], episode)


class MinorNumbering:
    """Hands out positions within the rl_step, remembering at least `units_kept` units."""

    def __init__(self, units_kept: int = UNITS_KEPT) -> None:
        self._latest: dict[int, _LatestUnits] = {}
        self._displaced = DisplacedUnits(units_kept)

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
        latest = self._latest_of(series_no, env)
        start = self._reached(series_no, rl_step, env, episode, latest)
        self._advance(series_no, rl_step, (env, episode, start + count), latest)
        return start

    def starts_of_calls(
        self,
        series_no: int,
        rl_step: Int64Array,
        env: Int64Array,
        episode: Int64Array,
        count: Int64Array,
    ) -> Int64Array | None:
        """Take positions for the segments of several calls, as `starts` call by call.

        The segments of one environment lie together, in call order. Answers None, having taken
        nothing, where an environment's episode falls or may return, or goes on under the same
        rl_step: then the calls must be numbered one by one.

        Args:
            series_no: the series.
            rl_step: int64 [k], that of each segment's call.
            env: int64 [k].
            episode: int64 [k].
            count: int64 [k], points of each segment.

        Returns:
            int64 [k], the first position of each segment.
        """
        latest = self._latest_of(series_no, env)
        is_head = np.ones(len(env), dtype=bool)
        np.not_equal(env[1:], env[:-1], out=is_head[1:])
        is_next = ~is_head[1:]
        is_same = is_next & (episode[1:] == episode[:-1])
        # An episode above all that its environment ever had is new, so it begins at 0.
        is_new = (episode[1:] > episode[:-1]) & (episode[1:] > latest.highest[env[1:]])
        is_plain = is_head[1:] | is_new | (is_same & (rl_step[1:] != rl_step[:-1]))
        if not is_plain.all():
            return None
        heads = np.flatnonzero(is_head)
        start = np.zeros(len(env), dtype=np.int64)
        # Behind its first segment every unit is new or under another rl_step: all begin at 0.
        start[heads] = self._reached(series_no, rl_step[heads], env[heads], episode[heads], latest)
        following = start + count
        last = np.append(heads[1:], len(env)) - 1
        self._displace_latest(series_no, env[heads], episode[heads], latest)
        passed = np.flatnonzero(is_next & ~is_same)
        if passed.size:
            self._displaced.add(
                series_no, env[passed], episode[passed], rl_step[passed], following[passed]
            )
        latest.put(env[last], episode[last], rl_step[last], following[last])
        return start

    def _latest_of(self, series_no: int, env: Int64Array) -> _LatestUnits:
        latest = self._latest.setdefault(series_no, _LatestUnits())
        latest.reserve(int(env.max()) + 1)
        return latest

    def _reached(
        self,
        series_no: int,
        rl_step: int | Int64Array,
        env: Int64Array,
        episode: Int64Array,
        latest: _LatestUnits,
    ) -> Int64Array:
        """The position that each of these units has reached under its rl_step."""
        is_latest = latest.episode[env] == episode
        start = np.where(is_latest & (latest.rl_step[env] == rl_step), latest.following[env], 0)
        # Only an episode that is not above all its environment ever had can have been displaced.
        where = np.flatnonzero(~is_latest & (episode <= latest.highest[env]))
        if where.size:
            known, following = self._displaced.take_back(series_no, env[where], episode[where])
            wanted = rl_step[where] if isinstance(rl_step, np.ndarray) else rl_step
            start[where] = np.where(known == wanted, following, 0)
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
        self._displace_latest(series_no, last_env, last_episode, latest)
        if not is_last.all():
            passed = np.flatnonzero(~is_last)
            self._displaced.add(series_no, env[passed], episode[passed], rl_step, following[passed])
            np.maximum.at(latest.highest, env, episode)
        latest.put(last_env, last_episode, rl_step, following[last])

    def _displace_latest(
        self, series_no: int, env: Int64Array, episode: Int64Array, latest: _LatestUnits
    ) -> None:
        """Remember the latest units of environments that go on with another episode."""
        old = latest.episode[env]
        moved = np.flatnonzero((old != _NO_UNIT) & (old != episode))
        if moved.size:
            gone = env[moved]
            self._displaced.add(
                series_no, gone, old[moved], latest.rl_step[gone], latest.following[gone]
            )
