"""Units that another episode of their environment displaced, and the positions they had reached.

Most never come back. So what is displaced is appended to columns, thousands of units in a few numpy
operations, and only when a unit may have come back are the columns folded into a dict that finds
it. At least `units_kept` of the latest are remembered, at most three times as many. Owned by the
engine thread.
"""

from __future__ import annotations

from itertools import islice, repeat

import numpy as np

from metrana_async.wire.model import Int64Array

_COLUMNS = 5
_ROOM = 64


class DisplacedUnits:
    """Where displaced units (series, env, episode) had got to: their rl_step, and what follows."""

    def __init__(self, units_kept: int) -> None:
        self._units_kept = units_kept
        # Series, env, episode, rl_step, following: in order of displacement, younger than the dict.
        self._columns = np.empty((_COLUMNS, 0), np.int64)
        self._used = 0
        self._found_by: dict[tuple[int, int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return self._used + len(self._found_by)

    def add(
        self,
        series_no: int,
        env: Int64Array,
        episode: Int64Array,
        rl_step: int | Int64Array,
        following: Int64Array,
    ) -> None:
        """Remember distinct units, least recently displaced first; int64 [k] each."""
        end = self._used + len(env)
        if end > self._columns.shape[1]:
            self._make_room(len(env))
            end = self._used + len(env)
        into = self._columns[:, self._used : end]
        into[0], into[1], into[2], into[3], into[4] = series_no, env, episode, rl_step, following
        self._used = end

    def take_back(
        self, series_no: int, env: Int64Array, episode: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Forget these units; (rl_step, following) of each, (-1, 0) of an unknown one."""
        self._fold()
        keys = zip(repeat(series_no), env.tolist(), episode.tolist(), strict=False)
        found = np.array(list(map(self._found_by.pop, keys, repeat((-1, 0)))), dtype=np.int64)
        return found[:, 0], found[:, 1]

    def _make_room(self, more: int) -> None:
        kept = min(self._used, self._units_kept)
        if kept == self._units_kept:
            self._found_by.clear()  # older than enough others
        room = max(_ROOM, 2 * (kept + more))
        columns = np.empty((_COLUMNS, room), np.int64)
        columns[:, :kept] = self._columns[:, self._used - kept : self._used]
        self._columns, self._used = columns, kept

    def _fold(self) -> None:
        if not self._used:
            return
        series, env, episode, rl_step, following = self._columns[:, : self._used].tolist()
        # zip and update run in C: no Python statement per unit.
        keys = zip(series, env, episode, strict=True)
        self._found_by.update(zip(keys, zip(rl_step, following, strict=True), strict=True))
        self._used = 0
        if len(self._found_by) > 2 * self._units_kept:
            # In bulk, since a dict's front is slow to walk after single removals.
            excess = len(self._found_by) - self._units_kept
            for key in list(islice(self._found_by, excess)):
                del self._found_by[key]
