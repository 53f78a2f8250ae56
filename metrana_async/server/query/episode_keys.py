"""What single episodes have under attribute paths: their own values, else their environment's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metrana_async.server.query import groups
from metrana_async.server.query.aggregate import group_starts
from metrana_async.wire.model import Int64Array

OwnValues = Mapping[str, Mapping[tuple[int, int], Any]]
"""By path: the values of single episodes, by (env_no, episode)."""


class Episodes(NamedTuple):
    """The distinct episodes of some rows, ordered; columns are [k].

    Attributes:
        of_row: int64 [n], the place of each row's episode among them.
    """

    env_no: Int64Array
    episode: Int64Array
    of_row: Int64Array


def own_values(attributes: Sequence[tuple[int, int, str, Any]]) -> OwnValues:
    """Attributes of single episodes, as (env_no, episode, path, value), by path."""
    found: dict[str, dict[tuple[int, int], Any]] = {}
    for env_no, episode, path, value in attributes:
        found.setdefault(path, {})[env_no, episode] = value
    return found


def distinct_episodes(env_no: Int64Array, episode: Int64Array) -> Episodes:
    """The episodes that rows (in any order) are of."""
    return Episodes(*_distinct(env_no, episode))


def episode_keys(
    episodes: Episodes, paths: Sequence[str], own: OwnValues, env_keys: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """What each episode has under each path; None where neither it nor its environment has one.

    Args:
        episodes: k of them.
        paths: of attributes.
        own: what single episodes have.
        env_keys: what each environment has under the same paths.
    """
    values = [own.get(path, {}) for path in paths]
    return [
        [
            mine.get((env, episode), of_env)
            for mine, of_env in zip(values, env_keys[env], strict=True)
        ]
        for env, episode in zip(episodes.env_no.tolist(), episodes.episode.tolist(), strict=True)
    ]


class Members(NamedTuple):
    """Environments as members of the groups their rows are in, once in each; columns are [m].

    Attributes:
        of_row: int64 [n], the place of each row's member among them.
    """

    group: Int64Array
    env_no: Int64Array
    of_row: Int64Array


def members(group_of_row: Int64Array, env_no: Int64Array) -> Members:
    """The members that rows are of: an environment may be in several groups by its episodes."""
    return Members(*_distinct(group_of_row, env_no))


def matching(keys: Sequence[Sequence[Any]], wanted: Sequence[Any]) -> Int64Array:
    """Positions of the keys that are `wanted`, by the equality that groups have."""
    _, place = groups.partition([wanted, *keys])
    return np.flatnonzero(place[1:] == place[0])


def _distinct(left: Int64Array, right: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The distinct pairs of two columns, ordered, and each row's place among them."""
    order = np.lexsort((right, left))
    starts = group_starts(left[order], right[order])
    is_first = np.zeros(len(order), dtype=np.int64)
    is_first[starts] = 1
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = np.cumsum(is_first) - 1
    return left[order[starts]], right[order[starts]], of_row
