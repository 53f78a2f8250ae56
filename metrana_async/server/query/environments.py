"""Environments of a run: what it has, a table at one slice, statistics across them.

Both readings are complete: every visible point of every environment asked for takes part, points of
superseded generations do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from metrana_async.errors import InvalidQueryError, NotFoundError
from metrana_async.server.query import across, aggregate, episode_keys, groups
from metrana_async.server.query.episode_keys import OwnValues
from metrana_async.server.query.line_points import rl_columns
from metrana_async.server.query.near_names import nearest
from metrana_async.server.query.service import EnvStepColumns, EpisodeColumns, QueryService
from metrana_async.server.query.statistics import Table, across_functions, across_table
from metrana_async.server.store.base import RunRow
from metrana_async.wire.model import Family, FloatArray, Int64Array
from metrana_async.wire.statistics import StatisticsQuery

_TABLE_COLUMNS: Final = 24
_NO_VALUES: Final[OwnValues] = {}
_RL_FAMILIES: Final = (Family.EPISODE.value, Family.ENV_STEP.value)

BoolArray = npt.NDArray[np.bool_]


def rl_info(service: QueryService, query: StatisticsQuery) -> dict[str, Any]:
    """What there is of reinforcement learning in a run, as a JSON object.

    Reads every RL series; each is listed with its points, environments and ranges.
    """
    run = service.find_run(query.workspace, query.project, query.run)
    series = []
    for row in service.metrics(run):
        if row["family"] in _RL_FAMILIES:
            asked = StatisticsQuery(scale=row["scale"], labels=row["labels"])
            columns = rl_columns(service, run, row["metric"], asked)
            series.append({**row, **_ranges(columns)})
    attributes = service.env_attributes(run)
    last_rl_steps = [s["last_rl_step"] for s in series if s["points_count"]]
    last_episodes = [s["last_episode"] for s in series if s["last_episode"] is not None]
    return {
        "envs_count": len(service.env_names(run)),
        "last_rl_step": max(last_rl_steps, default=None),
        "last_episode": max(last_episodes, default=None),
        "env_attributes": sorted({path for _, path, _ in attributes}),
        "episode_attributes": sorted({path for _, _, path, _ in service.episode_attributes(run)}),
        "series": series,
    }


def environment_table(service: QueryService, query: StatisticsQuery) -> Table:
    """One row an environment: where it is, and its metrics at the slice, reduced.

    At ``latest`` each environment shows the points of its own highest rl_step in the metric. An
    environment without points at the slice has NaN and a count of 0.

    Raises:
        NotFoundError: the run has no such metric, environment or attribute.
        InvalidQueryError: a slice or order that the metrics do not have.
    """
    run = service.find_run(query.workspace, query.project, query.run)
    functions = list(dict.fromkeys(query.functions or ("mean",)))
    for function in functions:
        aggregate.check_function(function, is_merge=False)
    if len(query.metrics) * (len(functions) + 1) > _TABLE_COLUMNS:
        raise InvalidQueryError(
            f"{len(query.metrics)} metrics by {len(functions)} functions are more columns than "
            f"a table's {_TABLE_COLUMNS}",
            hint="ask for fewer at a time",
        )
    if (query.at == "latest") != (query.at_number is None):
        raise InvalidQueryError(f"a slice at {query.at!r} with the number {query.at_number}")
    listed = service.environments(run)
    names = [row["env_id"] for row in listed]
    columns: dict[str, Any] = {
        "rl_step": _numbers(row["last_rl_step"] for row in listed),
        "episode": _numbers(row["last_episode"] for row in listed),
    }
    for metric in query.metrics:
        columns |= _at_slice(
            service, run, metric, query, functions=functions, envs_count=len(names)
        )
    is_wanted = wanted_envs(service, run, names, query)
    rows = np.flatnonzero(is_wanted)
    order = _order(query, [names[row] for row in rows], {n: c[rows] for n, c in columns.items()})
    rows = rows[order][: query.limit]
    return Table(
        {name: column[rows] for name, column in columns.items()},
        {
            "env_ids": [names[row] for row in rows],
            "total_count": int(is_wanted.sum()),
            "names": list(columns),
        },
    )


def aggregate_environments(service: QueryService, query: StatisticsQuery) -> Table:
    """Statistics across environments at each rl_step, episode or env step, in two stages.

    Raises:
        NotFoundError: the run has no such metric, environment or attribute.
        InvalidQueryError: an axis that the series does not have.
        UnsupportedAggregationError: a function that is not offered.
    """
    run = service.find_run(query.workspace, query.project, query.run)
    functions = across_functions(query)
    first = query.first or "mean"
    aggregate.check_function(first, is_merge=False)
    columns = rl_columns(service, run, query.metric, query, rl_step_range=query.rl_step_range)
    x, names = _axis(columns, query), columns.env_names
    own = episode_keys.own_values(service.episode_attributes(run))
    is_wanted = wanted_envs(service, run, names, query, own)
    taken = is_wanted[columns.env_no] & _wanted_rows(service, run, columns, query, own)
    env_no = columns.env_no[taken]
    keys = env_keys(service, run, len(names), query.by, own)
    if own.keys() & set(query.by):
        episodes = episode_keys.distinct_episodes(env_no, columns.episode[taken])
        distinct, group = groups.partition(episode_keys.episode_keys(episodes, query.by, own, keys))
        found = episode_keys.members(group[episodes.of_row], env_no)
        member, group_of_member, group_of_named = found.of_row, found.group, found.group
        named = found.env_no
    else:
        named = np.flatnonzero(is_wanted)
        distinct, group_of_named = groups.partition([keys[env] for env in named.tolist()])
        member, group_of_member = env_no, np.zeros(len(names), dtype=np.int64)
        group_of_member[named] = group_of_named
    reduced = across.reduce_each(x[taken], member, columns.value[taken], first)
    members = [names[env] for env in named.tolist()]
    return across_table(
        across.reduce_across(reduced, group_of_member, functions),
        {
            "groups": groups.describe_groups(query.by, distinct, group_of_named, members),
            "missing": [],
            "width": 1,
        },
    )


def wanted_envs(
    service: QueryService,
    run: RunRow,
    names: Sequence[str],
    query: StatisticsQuery,
    own: OwnValues = _NO_VALUES,
) -> BoolArray:
    """Which environments a query is about, bool [n]; NotFoundError for one that is not there.

    Conditions on attributes in `own` are about single episodes: they are not looked at here.
    """
    is_wanted = np.ones(len(names), dtype=bool)
    if query.env_ids is not None:
        number = {name: at for at, name in enumerate(names)}
        for name in query.env_ids:
            if name not in number:
                raise NotFoundError(
                    f"run {run.name!r} has no environment {name!r}",
                    hint=nearest(name, names, "environments()"),
                )
        is_wanted[:] = False
        is_wanted[[number[name] for name in query.env_ids]] = True
    where = {path: v for path, v in (query.env_where or {}).items() if path not in own}
    if where:
        keys = env_keys(service, run, len(names), list(where))
        is_right = np.zeros(len(names), dtype=bool)
        is_right[episode_keys.matching(keys, list(where.values()))] = True
        is_wanted &= is_right
    return is_wanted


def _wanted_rows(
    service: QueryService,
    run: RunRow,
    columns: EpisodeColumns | EnvStepColumns,
    query: StatisticsQuery,
    own: OwnValues,
) -> BoolArray:
    """Which rows are of episodes that have the values asked for, bool [n]."""
    where = {path: v for path, v in (query.env_where or {}).items() if path in own}
    if not where:
        return np.ones(len(columns.env_no), dtype=bool)
    of_envs = env_keys(service, run, len(columns.env_names), list(where), own)
    episodes = episode_keys.distinct_episodes(columns.env_no, columns.episode)
    keys = episode_keys.episode_keys(episodes, list(where), own, of_envs)
    is_right = np.zeros(len(keys), dtype=bool)
    is_right[episode_keys.matching(keys, list(where.values()))] = True
    return is_right[episodes.of_row]


def env_keys(
    service: QueryService,
    run: RunRow,
    envs_count: int,
    by: Sequence[str],
    own: OwnValues = _NO_VALUES,
) -> list[list[Any]]:
    """What each environment has under each attribute path; None where it has nothing.

    Raises:
        NotFoundError: no environment of the run has an attribute of this path, and no episode in
            `own` either.
    """
    keys: list[list[Any]] = [[None] * len(by) for _ in range(envs_count)]
    if not by:
        return keys
    place = {path: at for at, path in enumerate(by)}
    attributes = service.env_attributes(run)
    for env_no, path, value in attributes:
        if path in place and env_no < envs_count:
            keys[env_no][place[path]] = value
    known = {path for _, path, _ in attributes} | own.keys()
    for path in by:
        if path not in known:
            raise NotFoundError(
                f"no environment of run {run.name!r} has an attribute {path!r}",
                hint=nearest(path, known, "rl_info(run).env_attributes"),
            )
    return keys


# --- parts ---------------------------------------------------------------------------------------
def _axis(columns: EpisodeColumns | EnvStepColumns, query: StatisticsQuery) -> Int64Array:
    if query.over == "rl_step":
        return columns.rl_step
    if query.over == "env_step":
        if isinstance(columns, EpisodeColumns):
            raise InvalidQueryError(
                f"{query.metric!r} is logged once an episode and has no env steps",
                hint="take over='episode' or over='rl_step'",
            )
        return columns.env_step
    _check_episodic(columns, query.metric)
    return columns.episode


def _check_episodic(columns: EpisodeColumns | EnvStepColumns, metric: str) -> None:
    if isinstance(columns, EnvStepColumns) and bool((columns.episode < 0).any()):
        raise InvalidQueryError(
            f"{metric!r} is logged without episodes", hint="take the rl_step or the env step"
        )


def _at_slice(
    service: QueryService,
    run: RunRow,
    metric: str,
    query: StatisticsQuery,
    *,
    functions: Sequence[str],
    envs_count: int,
) -> dict[str, Int64Array | FloatArray]:
    """The metric's columns: each function, and the count of points behind it."""
    number = query.at_number or 0
    here = (number, number)
    columns = rl_columns(
        service,
        run,
        metric,
        query,
        rl_step_range=here if query.at == "rl_step" else None,
        episode_range=here if query.at == "episode" else None,
    )
    if query.at == "episode":
        info = rl_columns(service, run, metric, query) if len(columns.env_no) == 0 else columns
        _check_episodic(info, metric)
    env_no, value = columns.env_no, columns.value
    if query.at == "latest":
        latest = np.full(envs_count, -1, dtype=np.int64)
        is_listed = env_no < envs_count  # an environment may have come since
        np.maximum.at(latest, env_no[is_listed], columns.rl_step[is_listed])
        is_latest = np.zeros(len(env_no), dtype=bool)
        is_latest[is_listed] = columns.rl_step[is_listed] == latest[env_no[is_listed]]
        env_no, value = env_no[is_latest], value[is_latest]
    elif bool((env_no >= envs_count).any()):
        env_no, value = env_no[env_no < envs_count], value[env_no < envs_count]
    starts = aggregate.group_starts(env_no)
    envs = env_no[starts]
    reduced = aggregate.aggregate_groups(value, starts, functions)
    made: dict[str, Int64Array | FloatArray] = {}
    for function in functions:
        made[f"{metric}.{function}"] = np.full(envs_count, np.nan)
        made[f"{metric}.{function}"][envs] = reduced[function]
    made[f"{metric}.points_count"] = np.zeros(envs_count, dtype=np.int64)
    made[f"{metric}.points_count"][envs] = np.diff(starts, append=len(env_no))
    return made


def _order(query: StatisticsQuery, names: Sequence[str], columns: Mapping[str, Any]) -> Int64Array:
    """Rows in the order asked for; ties and rows without a number keep theirs, NaN comes last."""
    if query.order_by is None:
        return np.arange(len(names))
    wanted, is_down = query.order_by, False
    known = {"env_id", *columns, *query.metrics}
    if wanted not in known and wanted.startswith("-"):
        wanted, is_down = wanted[1:], True
    if wanted not in known:
        raise InvalidQueryError(
            f"order_by of the query is {query.order_by!r}; it is one of {', '.join(sorted(known))}",
            hint="with - before it for the highest first",
        )
    if wanted == "env_id":
        key = np.argsort(np.argsort(np.array(names, dtype=object), kind="stable"))
    elif wanted in columns:
        key = columns[wanted]
    else:
        key = columns[next(name for name in columns if name.startswith(f"{wanted}."))]
    is_nan = np.isnan(key)
    return np.lexsort((-key if is_down else key, is_nan))


def _ranges(columns: EpisodeColumns | EnvStepColumns) -> dict[str, Any]:
    episodes = columns.episode[columns.episode >= 0]
    return {
        "points_count": len(columns.env_no),
        "envs_count": len(np.unique(columns.env_no)),
        "first_rl_step": int(columns.rl_step.min()) if len(columns.rl_step) else None,
        "last_rl_step": int(columns.rl_step.max()) if len(columns.rl_step) else None,
        "first_episode": int(episodes.min()) if len(episodes) else None,
        "last_episode": int(episodes.max()) if len(episodes) else None,
    }


def _numbers(numbers: Any) -> Int64Array:
    """Numbers with -1 for None, int64 [n]."""
    return np.array([-1 if number is None else number for number in numbers], dtype=np.int64)
