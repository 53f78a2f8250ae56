"""How far a run's series go, from the cursors of the last seals and the tails behind them.

No points are read, so a run of a hundred thousand series answers as fast as it is listed. The tails
are taken before the heads: what is sealed in between is then in both, and a maximum does not mind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metrana_async.server.ingest import dumps
from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    PointStore,
    SeriesRow,
)
from metrana_async.wire.model import Family, Int64Array

NOTHING = -1
"""In place of a step, rl_step or episode: there is none."""


def last_steps(store: PointStore, run_no: int, series: Sequence[SeriesRow]) -> Int64Array:
    """The highest step of each of these STANDARD series of a run, int64 [n]; -1 where none."""
    last = np.full(len(series), NOTHING, dtype=np.int64)
    numbers = np.array([row.series_no for row in series], dtype=np.int64)
    order = np.argsort(numbers)
    ascending = numbers[order]
    if not len(series):
        return last
    for table in store.tails(run_no):
        if isinstance(table, AcceptedPoints) and not table.has_envs:
            at = np.minimum(np.searchsorted(ascending, table.series_no), len(ascending) - 1)
            mine = ascending[at] == table.series_no
            np.maximum.at(last, order[at[mine]], table.step[mine])
    heads = store.heads(run_no) if len(series) > 1 else store.heads(run_no, numbers.tolist())
    blobs = [heads.get(number) for number in numbers.tolist()]
    sealed = [at for at, blob in enumerate(blobs) if blob is not None]
    steps = dumps.standard_columns([blob for blob in blobs if blob is not None])[0]
    last[sealed] = np.maximum(last[sealed], steps)
    return last


def environment_maxima(
    store: PointStore, run_no: int, series: Sequence[SeriesRow], envs_count: int
) -> tuple[Int64Array, Int64Array]:
    """The highest rl_step and the highest episode of each environment, int64 [envs_count] each.

    Over all RL series in `series`; -1 where there is none. A restart does not lower them.
    """
    last_rl = np.full(envs_count, NOTHING, dtype=np.int64)
    last_episode = np.full(envs_count, NOTHING, dtype=np.int64)
    for table in store.tails(run_no):
        if isinstance(table, AcceptedSegments):
            _raise_at(last_rl, table.env_no, table.rl_step)
            _raise_at(last_episode, table.env_no, table.episode)
        elif table.has_envs:
            _raise_at(last_rl, table.env_no, table.rl_step)
            _raise_at(last_episode, table.env_no, table.step)
    families = {row.series_no: row.definition.family for row in series}
    numbers = [n for n, family in families.items() if family is not Family.STANDARD]
    for series_no, blob in store.heads(run_no, numbers).items():
        if families[series_no] is Family.EPISODE:
            cursors, max_rl = dumps.load_episodes(blob)
            max_episode = cursors.max_step
        else:
            units = dumps.load_units(blob)
            max_rl, max_episode = units.max_rl, units.max_episode
        _raise(last_rl, max_rl)
        _raise(last_episode, max_episode)
    return last_rl, last_episode


def _raise_at(highest: Int64Array, env_no: Int64Array, values: Int64Array) -> None:
    """Raise the environments' maxima by rows; an environment may have come since it was listed."""
    listed = env_no < len(highest)
    np.maximum.at(highest, env_no[listed], values[listed])


def _raise(highest: Int64Array, column: Int64Array) -> None:
    count = min(len(highest), len(column))
    np.maximum(highest[:count], column[:count], out=highest[:count])
