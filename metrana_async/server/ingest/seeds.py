"""What a joining writer knows from the start: last steps, episodes and pins of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrana_async.server.ingest.catalogue import RunState
from metrana_async.server.ingest.cursors import RunCursors
from metrana_async.server.ingest.rules.unit_table import MODE_CODES, UnitTable
from metrana_async.wire.messages import Seeds
from metrana_async.wire.model import Family, Int64Array


def make_seeds(run: RunState, cursors: RunCursors, part: range) -> Seeds:
    """Seeds of some series of a run whose cursors are all loaded; see wire.messages.Seeds.

    Environments come with the run's last series.
    """
    series: list[list[Any]] = []
    episodes: list[list[Any]] = []
    for index in part:
        family = run.series[index].definition.family
        last_step: int | None = None
        modes: dict[str, list[str]] = {}
        if family is Family.STANDARD:
            highest = int(cursors.standard.max_step[index])
            last_step = highest if highest >= 0 else None
        elif family is Family.EPISODE:
            one = cursors.episodes[index]
            logged = np.flatnonzero(one.points.max_step >= 0).tolist()
            episodes += [
                [index - part.start, run.env_names[env], int(one.points.max_step[env])]
                for env in logged
            ]
        else:
            modes = _modes(cursors.env_steps[index].table, run.env_names)
        series.append(_series_row(run, index, last_step, modes))
    is_last = part.stop >= len(run.series)
    environments = _environments(run, cursors) if is_last else []
    return Seeds(series=series, environments=environments, episodes=episodes)


def _environments(run: RunState, cursors: RunCursors) -> list[list[Any]]:
    last_rl = np.full(len(run.env_names), -1, np.int64)
    last_episode = np.full(len(run.env_names), -1, np.int64)
    for one in cursors.episodes.values():
        _raise(last_rl, one.max_rl)
        _raise(last_episode, one.points.max_step)
    for units in cursors.env_steps.values():
        _raise(last_rl, units.table.max_rl)
        _raise(last_episode, units.table.max_episode)
    return [
        [name, _or_none(rl), _or_none(episode)]
        for name, rl, episode in zip(
            run.env_names, last_rl.tolist(), last_episode.tolist(), strict=True
        )
        if rl >= 0
    ]


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
