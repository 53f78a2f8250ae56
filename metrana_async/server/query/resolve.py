"""Stored rows to visible rows. Pure: columns in, row indexes or columns out; no store, no clock.

The store hands rows back in arrival order and never forgets a replaced or discarded one. The three
readings here say which rows are visible and in which order:

* `latest_rows`: one row a key, the one that arrived last (ordered STANDARD and EPISODE series);
* `merge_steps`: one summary a step (merge series);
* `generation_rows`: the rows of one generation of each episode (ENV_STEP series).

Every function is deterministic and vectorised: its cost is a comparison per row where rows already
lie in order, which is how they nearly always arrive, and a sort otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metrana_async.wire.model import FloatArray, Int64Array

BoolArray = npt.NDArray[np.bool_]
RowIndex = Int64Array | slice
"""What to index every column with; a slice where all rows stay, so that nothing is copied."""

ALL_ROWS = slice(None)


@dataclass(frozen=True, slots=True)
class MergedSteps:
    """One row a step of a merge series, ordered by step; equal-length columns.

    Attributes:
        count: points at the step, NaN among them.
        nan_count: how many of them are NaN.
        min, max: over the values that are not NaN; NaN where all are.
        first, last: by (time, writer id, arrival), NaN kept; `last` is the step's default reading.
        time_ms: of the last point.
    """

    step: Int64Array
    count: Int64Array
    nan_count: Int64Array
    min: FloatArray
    max: FloatArray
    first: FloatArray
    last: FloatArray
    time_ms: Int64Array

    def __len__(self) -> int:
        return len(self.step)


def latest_rows(*keys: Int64Array) -> RowIndex:
    """Rows to show, ordered by `keys` (most significant first); the last arrival of a key wins.

    Args:
        keys: int64 [n] each, in arrival order.
    """
    if _is_strictly_increasing(keys):
        return ALL_ROWS
    order = np.lexsort(keys[::-1])  # stable: arrival order stays within a key
    is_last = np.ones(len(order), dtype=bool)
    is_last[:-1] = _differs_from_next(keys, order)
    return np.asarray(order[is_last], dtype=np.int64)


def merge_rows(step: Int64Array, time_ms: Int64Array, writer_rank: Int64Array) -> RowIndex:
    """All rows of a merge series, ordered by step and then (time, writer, arrival).

    Columns are int64 [n]; `writer_rank` is the place of the row's writer among the writer ids in
    string order.
    """
    keys = (step, time_ms, writer_rank)
    if _is_strictly_increasing(keys):
        return ALL_ROWS
    return np.asarray(np.lexsort(keys[::-1]), dtype=np.int64)


def merge_steps(
    step: Int64Array, time_ms: Int64Array, value: FloatArray, writer_rank: Int64Array
) -> MergedSteps:
    """Reduce the rows of a merge series to one row a step.

    Columns are [n], as for `merge_rows`. Only between rows of one writer at one time does the
    arrival order decide.
    """
    rows = merge_rows(step, time_ms, writer_rank)
    step, time_ms, value = step[rows], time_ms[rows], value[rows]
    if len(step) == 0:
        none = np.empty(0, dtype=np.int64)
        return MergedSteps(step, none, none, value, value, value, value, time_ms)
    starts = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    ends = np.append(starts[1:], len(step))
    return MergedSteps(
        step=step[starts],
        count=ends - starts,
        nan_count=np.add.reduceat(np.isnan(value), starts, dtype=np.int64),
        # fmin and fmax leave NaN out unless there is nothing else.
        min=np.fmin.reduceat(value, starts),
        max=np.fmax.reduceat(value, starts),
        first=value[starts],
        last=value[ends - 1],
        time_ms=time_ms[ends - 1],
    )


@dataclass(frozen=True, slots=True)
class Generations:
    """Which generation of each (env, episode) is current, where it is not 0; equal-length columns.

    Rows are unique and ordered by (env_no, episode).
    """

    env_no: Int64Array
    episode: Int64Array
    generation: Int64Array

    @classmethod
    def from_cuts(
        cls, env_no: Int64Array, episode: Int64Array, generation: Int64Array
    ) -> Generations:
        """The highest generation among the cuts of each (env, episode); cuts in any order."""
        order = np.lexsort((generation, episode, env_no))
        keys = (env_no, episode)
        is_highest = np.ones(len(order), dtype=bool)
        is_highest[:-1] = _differs_from_next(keys, order)
        kept = order[is_highest]
        return cls(env_no[kept], episode[kept], generation[kept])

    def of(self, env_no: Int64Array, episode: Int64Array) -> Int64Array:
        """The current generation of each row's (env, episode), int64 [n]; 0 where it has no cut."""
        if len(self.episode) == 0:
            return np.zeros(len(episode), dtype=np.int64)
        episodes = np.unique(self.episode)
        envs = np.unique(self.env_no)
        # Episodes go to 2**63-1, so a pair is packed by places among the few that have a cut.
        packed = np.searchsorted(envs, self.env_no) * len(episodes)
        packed += np.searchsorted(episodes, self.episode)
        env_at = np.minimum(np.searchsorted(envs, env_no), len(envs) - 1)
        episode_at = np.minimum(np.searchsorted(episodes, episode), len(episodes) - 1)
        wanted = env_at * len(episodes) + episode_at
        at = np.minimum(np.searchsorted(packed, wanted), len(packed) - 1)
        has_cut = (
            (envs[env_at] == env_no) & (episodes[episode_at] == episode) & (packed[at] == wanted)
        )
        return np.where(has_cut, self.generation[at], 0)


def generation_rows(
    env_no: Int64Array,
    episode: Int64Array,
    step: Int64Array,
    generation: Int64Array,
    wanted: Int64Array | int,
) -> RowIndex:
    """Rows of the wanted generation, ordered by (env, episode, step).

    Columns are int64 [n] in arrival order; `wanted` is [n] as from `Generations.of`, or one
    generation for all.
    """
    is_wanted = generation == wanted
    if bool(is_wanted.all()):
        return latest_rows(env_no, episode, step)
    kept = np.flatnonzero(is_wanted)
    rows = latest_rows(env_no[kept], episode[kept], step[kept])
    return kept[rows]


def _is_strictly_increasing(keys: tuple[Int64Array, ...]) -> bool:
    """Whether rows, compared by `keys` lexicographically, only go up. True for 0 or 1 rows."""
    least = keys[-1]
    is_above: BoolArray = least[1:] > least[:-1]
    for key in keys[-2::-1]:
        is_above = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & is_above)
    return bool(is_above.all())


def _differs_from_next(keys: tuple[Int64Array, ...], order: Int64Array) -> BoolArray:
    """Whether each ordered row differs from its successor in some key, bool [n - 1]."""
    differs = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        ordered = key[order]
        differs |= ordered[1:] != ordered[:-1]
    return differs
