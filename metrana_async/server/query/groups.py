"""Runs in groups: which runs belong together, and their numbers put side by side. Pure.

A run's points are first reduced to one number at each place of the axis (a step or a bucket); a
group's statistics are over those numbers, one a run. Runs of different lengths are compared where
they have data: `count` says how many had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import orjson

from metrana_async.server.query.across import Reduced
from metrana_async.server.query.aggregate import aggregate_groups, group_starts, group_sums
from metrana_async.server.query.buckets import Buckets, Treatment, value_columns
from metrana_async.wire.model import Int64Array

_FACTS: Final = ("name", "project", "state", "tags", "description", "git_sha", "run_uid")
_CONFIG: Final = "config/"


def run_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """What a run can be grouped by: its facts, ``config.…``, and every attribute by its path.

    `run` is as `runs.describe_run` makes it. A nested key of the config is found both by its dots
    and by its slashes: ``config.optimizer.lr`` and ``config.optimizer/lr``.
    """
    attributes = run["attributes"]
    config = {
        path[len(_CONFIG) :]: value
        for path, value in attributes.items()
        if path.startswith(_CONFIG)
    }
    return {
        **attributes,
        **{f"config.{path.replace('/', '.')}": value for path, value in config.items()},
        **{f"config.{path}": value for path, value in config.items()},
        **{name: run[name] for name in _FACTS},
    }


def partition(keys: Sequence[Sequence[Any]]) -> tuple[list[Sequence[Any]], Int64Array]:
    """The distinct keys in the order they come, and each row's place among them.

    Keys are JSON values; 1 and 1.0 are one key, 1 and true are two.
    """
    places: dict[bytes, int] = {}
    distinct: list[Sequence[Any]] = []
    place = np.empty(len(keys), dtype=np.int64)
    for at, key in enumerate(keys):
        text = orjson.dumps([_plain(value) for value in key], option=orjson.OPT_SORT_KEYS)
        if text not in places:
            places[text] = len(distinct)
            distinct.append(key)
        place[at] = places[text]
    return distinct, place


def describe_groups(
    by: Sequence[str], keys: Sequence[Sequence[Any]], group: Int64Array, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Each group as a JSON object: what its members have in common, and their names in order.

    Args:
        by: the names that groups are made by.
        keys: what each group has under them.
        group: int64 [n], the group of each member; every group has one.
        names: [n], of the members.
    """
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(keys) + 1)).tolist()
    return [
        {
            "by": dict(zip(by, key, strict=True)),
            "members": [names[at] for at in order[starts[place] : starts[place + 1]].tolist()],
        }
        for place, key in enumerate(keys)
    ]


def run_numbers(buckets: Buckets, member: int, function: str, treatment: Treatment) -> Reduced:
    """One number of a run at each x.

    Where the run's lines are its environments, each is reduced first, and the run's number is the
    mean over those that have one.

    Args:
        buckets: the run's summaries, at the level all runs are compared at.
        member: the run's position among all runs.
        function: how points are reduced; one of `aggregate.FUNCTIONS`.
        treatment: as the summaries were made.
    """
    partials = buckets.partials
    taking_part = partials.finite_count
    if treatment is Treatment.AGGREGATE:
        taking_part = partials.count
    value = value_columns(buckets, [function], treatment=treatment)[function]
    # A count or a sum over nothing is 0, which is no number of this run.
    value = np.where(taking_part > 0, value, np.nan)
    order = np.argsort(buckets.x, kind="stable")
    x = buckets.x[order]
    starts = group_starts(x)
    return Reduced(
        x=x[starts],
        member=np.full(len(starts), member, dtype=np.int64),
        value=aggregate_groups(value[order], starts, ["mean"])["mean"],
        points_count=group_sums(buckets.points_count[order], starts),
        nan_count=group_sums((buckets.points_count - taking_part)[order], starts),
    )


def side_by_side(parts: Sequence[Reduced]) -> Reduced:
    """The numbers of several runs as one table, ordered by (x, run)."""
    names = [field.name for field in fields(Reduced)]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    order = np.lexsort((columns["member"], columns["x"]))
    return Reduced(**{name: column[order] for name, column in columns.items()})


def _plain(value: Any) -> Any:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value
