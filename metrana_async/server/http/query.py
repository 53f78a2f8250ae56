"""The query endpoints: a `wire.queries.Query` in, JSON or columns out.

Which fields each path reads is the table of `wire.queries`. Reading, reducing and encoding all run
on the query service's threads: an event loop that ingests is never held up by a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from metrana_async.server.http.dashboard import dashboard_endpoints
from metrana_async.server.http.endpoint import Answer, Endpoint
from metrana_async.server.http.listing import listing_endpoints
from metrana_async.server.http.statistics import statistics_endpoints
from metrana_async.server.query.service import (
    EnvStepColumns,
    EpisodeColumns,
    QueryService,
    Range,
)
from metrana_async.server.store.base import RunRow
from metrana_async.wire.answers import encode_columns, encode_number
from metrana_async.wire.messages import COLUMNS_TYPE
from metrana_async.wire.model import ML_STEP
from metrana_async.wire.queries import Query, decode_query

_Read = Callable[[QueryService, Query], Answer]


def query_endpoints(service: QueryService) -> dict[str, Endpoint]:
    """Endpoints by path, to be mounted under ``API_PREFIX``."""
    ours = {path: _endpoint(service, read) for path, read in _READS.items()}
    return {
        **ours,
        **listing_endpoints(service),
        **statistics_endpoints(service),
        **dashboard_endpoints(service),
    }


def _endpoint(service: QueryService, read: _Read) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        query = decode_query(body)
        return await service.in_thread(lambda: read(service, query))

    return endpoint


def _json(content: Any) -> Answer:
    return Answer(orjson.dumps(content))


def _run(service: QueryService, query: Query) -> RunRow:
    return service.find_run(query.workspace, query.project, query.require("run"))


def _range(query: Query) -> Range | None:
    return None if query.step_range is None else (query.step_range[0], query.step_range[1])


def _episodes(query: Query) -> Range | None:
    return _range(query) if query.episode is None else (query.episode, query.episode)


def _projects(service: QueryService, query: Query) -> Answer:
    return _json(service.projects(query.workspace))


def _one_run(service: QueryService, query: Query) -> Answer:
    return _json(service.run(_run(service, query)))


def _metrics(service: QueryService, query: Query) -> Answer:
    return _json(service.metrics(_run(service, query)))


def _environments(service: QueryService, query: Query) -> Answer:
    return _json(service.environments(_run(service, query)))


def _last_steps(service: QueryService, query: Query) -> Answer:
    return _json(service.last_steps(_run(service, query)))


def _ledger(service: QueryService, query: Query) -> Answer:
    return _json(service.ledger(_run(service, query)))


def _aggregate(service: QueryService, query: Query) -> Answer:
    value = service.aggregate(
        _run(service, query),
        query.require("metric"),
        query.require("function"),
        scale=query.scale,
        labels=query.labels or {},
        env_id=query.env_id,
        episode=query.episode,
    )
    return _json({"value": encode_number(value)})


def _series(service: QueryService, query: Query) -> Answer:
    columns = service.series(
        _run(service, query),
        query.require("metric"),
        scale=query.scale or ML_STEP,
        labels=query.labels or {},
        step_range=_range(query),
    )
    return Answer(encode_columns(columns._asdict()), COLUMNS_TYPE)


def _merged(service: QueryService, query: Query) -> Answer:
    merged = service.merged(
        _run(service, query),
        query.require("metric"),
        scale=query.scale or ML_STEP,
        labels=query.labels or {},
        step_range=_range(query),
    )
    columns = {name: getattr(merged, name) for name in merged.__dataclass_fields__}
    return Answer(encode_columns(columns), COLUMNS_TYPE)


def _episode_series(service: QueryService, query: Query) -> Answer:
    return _with_envs(
        service.episode_series(
            _run(service, query),
            query.require("metric"),
            env_id=query.env_id,
            labels=query.labels or {},
            episode_range=_episodes(query),
        )
    )


def _env_series(service: QueryService, query: Query) -> Answer:
    return _with_envs(
        service.env_series(
            _run(service, query),
            query.require("metric"),
            env_id=query.env_id,
            labels=query.labels or {},
            episode_range=_episodes(query),
            generation=query.generation,
        )
    )


def _with_envs(answer: EpisodeColumns | EnvStepColumns) -> Answer:
    """Columns, with the environment ids that `env_no` counts through beside them."""
    columns = answer._asdict()
    names = columns.pop("env_names")
    return Answer(encode_columns(columns, {"env_names": names}), COLUMNS_TYPE)


_READS: dict[str, _Read] = {
    "/query/projects": _projects,
    "/query/run": _one_run,
    "/query/metrics": _metrics,
    "/query/environments": _environments,
    "/query/last_steps": _last_steps,
    "/query/ledger": _ledger,
    "/query/aggregate": _aggregate,
    "/query/series": _series,
    "/query/merged": _merged,
    "/query/episode_series": _episode_series,
    "/query/env_series": _env_series,
}
