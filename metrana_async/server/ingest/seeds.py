"""What a joining writer knows from the start: last steps, episodes and pins of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrana_async.server.ingest.catalogue import RunState
from metrana_async.server.ingest.cursors import RunCursors
from metrana_async.server.ingest.rules.unit_table import MODE_CODES, UnitTable
from metrana_async.wire.messages import Seeds
from metrana_async.wire.model import Family, Int64Array


def make_seeds(run: RunState, cursors: RunCursors) -> Seeds:
    """Seeds of a run whose cursors are all loaded; see wire.messages.Seeds."""
    envs_count = len(run.env_names)
    last_rl = np.full(envs_count, -1, np.int64)
    last_episode = np.full(envs_count, -1, np.int64)
    series: list[list[Any]] = []
    episodes: list[list[Any]] = []
    for index, row in enumerate(run.series):
        family = row.definition.family
        last_step: int | None = None
        modes: dict[str, list[str]] = {}
        if family is Family.STANDARD:
            highest = int(cursors.standard.max_step[index])
            last_step = highest if highest >= 0 else None
        elif family is Family.EPISODE:
            one = cursors.episodes[index]
            _raise(last_rl, one.max_rl)
            _raise(last_episode, one.points.max_step)
            logged = np.flatnonzero(one.points.max_step >= 0).tolist()
            episodes += [
                [index, run.env_names[env], int(one.points.max_step[env])] for env in logged
            ]
        else:
            table = cursors.env_steps[index].table
            _raise(last_rl, table.max_rl)
            _raise(last_episode, table.max_episode)
            modes = _modes(table, run.env_names)
        series.append(_series_row(run, index, last_step, modes))
    environments = [
        [name, _or_none(rl), _or_none(episode)]
        for name, rl, episode in zip(
            run.env_names, last_rl.tolist(), last_episode.tolist(), strict=True
        )
        if rl >= 0
    ]
    return Seeds(series=series, environments=environments, episodes=episodes)


def _series_row(
    run: RunState, index: int, last_step: int | None, modes: dict[str, list[str]]
) -> list[Any]:
    definition = run.series[index].definition
    labels = [list(pair) for pair in definition.labels]
    return [
        *(definition.family.value, definition.metric, definition.scale, labels),
        *(definition.ordering.value, definition.episodic, last_step, modes),
    ]


def _raise(furthest: Int64Array, column: Int64Array) -> None:
    """Element-wise maximum over the environments both know."""
    count = min(len(furthest), len(column))
    np.maximum(furthest[:count], column[:count], out=furthest[:count])


def _modes(table: UnitTable, names: list[str]) -> dict[str, list[str]]:
    """Environment ids by the mode they are pinned to."""
    found = {}
    for mode, code in MODE_CODES.items():
        envs = np.flatnonzero(table.mode == code).tolist()
        if envs:
            found[mode.value] = [names[env] for env in envs]
    return found


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None
