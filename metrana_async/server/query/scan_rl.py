"""Long RL series piece by piece: whole episodes, about as many rows at a time as asked for.

A page of a series of episodes is a stretch of episodes of all environments. A page of environment
steps goes through one environment after the other, several at once where they are short, a stretch
of episodes where one is long. How long they are is learnt from what was read; a stretch grows by
steps, so that a page holds not much more than it should, but at least an episode (where there are
none: an environment). Nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from metrana_async.errors import InvalidQueryError
from metrana_async.server.query import extents
from metrana_async.server.query.aggregate import group_starts
from metrana_async.server.query.service import EnvStepColumns, EpisodeColumns, QueryService, Range
from metrana_async.server.store.base import RunRow, SeriesRow
from metrana_async.wire import limits
from metrana_async.wire.model import Family

_GROWTH: Final = 8


def scan_episodes_page(
    service: QueryService,
    run: RunRow,
    metric: str,
    *,
    labels: Mapping[str, str],
    episode_range: Range | None,
    limit: int,
) -> tuple[EpisodeColumns, int | None]:
    """The next episodes of all environments, ordered by (env_no, episode).

    Returns:
        At least `limit` rows if there are so many, and the episode to go on from; None at the end.
    """
    first, last = episode_range or (0, limits.STEP_MAX)
    series = service.rl_series(run, Family.EPISODE, metric, labels)
    last = min(last, max(_last_episodes(service, run, series), default=-1))
    parts = [service.episodes_of(series, (first, first))]
    rows_count, width, first = len(parts[0].value), 1, first + 1
    while rows_count < limit and first <= last:
        each = max(1, rows_count)  # of an episode, were all as well attended as those until here
        width = min(width * _GROWTH, max(1, (limit - rows_count) // each), last - first + 1)
        parts.append(service.episodes_of(series, (first, first + width - 1)))
        rows_count += len(parts[-1].value)
        first += width
    order = np.lexsort((_column(parts, "episode"), _column(parts, "env_no")))
    columns = {n: _column(parts, n)[order] for n in EpisodeColumns._fields if n != "env_names"}
    page = EpisodeColumns(**columns, env_names=parts[-1].env_names)
    return page, first if first <= last else None


def scan_env_steps_page(
    service: QueryService,
    run: RunRow,
    metric: str,
    *,
    labels: Mapping[str, str],
    episode_range: Range | None,
    after: str | None,
    limit: int,
) -> tuple[EnvStepColumns, str | None]:
    """The next environments or episodes, ordered by (env_no, episode, env_step).

    Returns:
        At least `limit` rows if there are so many, and the cursor to go on from; None at the end.
    """
    low, high = episode_range or (0, limits.STEP_MAX)
    series = service.rl_series(run, Family.ENV_STEP, metric, labels)
    lasts = [min(last, high) for last in _last_episodes(service, run, series)]
    env, episode = (0, low) if after is None else _position(after)
    parts: list[EnvStepColumns] = []
    rows_count = units_count = 0
    while env < len(lasts) and (rows_count < limit or not parts):
        # Of the first unit nothing is known: an episode may have a million steps.
        each = rows_count / units_count if units_count else limit
        wanted = min(int((limit - rows_count) / max(each, 1)), units_count * _GROWTH) or 1
        if series.definition.episodic and lasts[env] - episode + 1 > wanted:
            envs, episodes = range(env, env + 1), (episode, episode + wanted - 1)
            episode += wanted
        else:
            end = env + 1 if episode > low else _end(lasts, env, low, wanted)
            envs, episodes = range(env, end), (episode, high)
            env, episode = end, low
        is_whole = episode_range is None and not series.definition.episodic
        part = service.env_steps_of(series, envs, None if is_whole else episodes)
        rows_count += len(part.value)
        units_count += max(1, len(group_starts(part.env_no, part.episode)))
        parts.append(part)
    if not parts:
        parts.append(service.env_steps_of(series, (), None))
    columns = {n: _column(parts, n) for n in EnvStepColumns._fields if n != "env_names"}
    page = EnvStepColumns(**columns, env_names=parts[-1].env_names)
    return page, f"{env}:{episode}" if env < len(lasts) else None


def _last_episodes(service: QueryService, run: RunRow, series: SeriesRow) -> list[int]:
    """Of each environment an episode behind which there is none; -1 where none is known."""
    names = service.env_names(run)
    _, last = extents.environment_maxima(service.store, run.run_no, [series], len(names))
    return [int(episode) for episode in last]


def _end(lasts: Sequence[int], env: int, low: int, wanted: int) -> int:
    """Behind the environments that together have at most `wanted` episodes; at least one."""
    end, count = env + 1, max(1, lasts[env] - low + 1)
    while end < len(lasts) and count + max(1, lasts[end] - low + 1) <= wanted:
        count += max(1, lasts[end] - low + 1)
        end += 1
    return end


def _position(cursor: str) -> tuple[int, int]:
    env, _, episode = cursor.partition(":")
    if not (env.isdecimal() and episode.isdecimal()):
        raise InvalidQueryError(f"after={cursor!r:.80} is no cursor of this server")
    return int(env), int(episode)


def _column(parts: Sequence[EpisodeColumns] | Sequence[EnvStepColumns], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])
