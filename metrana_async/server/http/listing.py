"""The endpoints that list: runs by filter and page, attributes, definitions, summaries, scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from metrana_async.errors import InvalidQueryError
from metrana_async.server.http.endpoint import Answer, Endpoint
from metrana_async.server.query import listing, summaries
from metrana_async.server.query.scan import scan_page
from metrana_async.server.query.scan_rl import scan_env_steps_page, scan_episodes_page
from metrana_async.server.query.service import QueryService, Range
from metrana_async.server.store.base import RunRow
from metrana_async.wire.answers import encode_columns
from metrana_async.wire.messages import COLUMNS_TYPE
from metrana_async.wire.model import ML_STEP
from metrana_async.wire.queries import Query, decode_query
from metrana_async.wire.statistics import decode_statistics_query

_SCAN_ROWS: Final = 100_000


def listing_endpoints(service: QueryService) -> dict[str, Endpoint]:
    """Endpoints by path, to be mounted under ``API_PREFIX``."""
    ours = {path: _endpoint(service, read) for path, read in _READS.items()}
    return {**ours, "/query/series_summaries": _summaries(service)}


def _endpoint(service: QueryService, read: Callable[[QueryService, Query], Answer]) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        query = decode_query(body)
        return await service.in_thread(lambda: read(service, query))

    return endpoint


def _json(content: Any) -> Answer:
    return Answer(orjson.dumps(content))


def _run(service: QueryService, query: Query) -> RunRow:
    return service.find_run(query.workspace, query.project, query.require("run"))


def _runs(service: QueryService, query: Query) -> Answer:
    if query.limit == 0:
        raise InvalidQueryError("limit of the query is 0; a page has at least one run")
    found, after = listing.list_runs(
        service,
        query.workspace,
        query.project,
        where=query.where,
        order_by=query.order_by,
        limit=query.limit,
        after=query.after,
    )
    return _json({"runs": found, "after": after})


def _attributes(service: QueryService, query: Query) -> Answer:
    return _json(listing.attributes(service, _run(service, query)))


def _definitions(service: QueryService, query: Query) -> Answer:
    return _json(listing.definitions(service, query.workspace, query.project))


def _scan(service: QueryService, query: Query) -> Answer:
    columns, next_step = scan_page(
        service,
        _run(service, query),
        query.require("metric"),
        scale=query.scale or ML_STEP,
        labels=query.labels or {},
        step_range=_pair(query),
        limit=max(1, query.limit or _SCAN_ROWS),
    )
    return Answer(encode_columns(columns._asdict(), {"next_step": next_step}), COLUMNS_TYPE)


def _scan_episodes(service: QueryService, query: Query) -> Answer:
    page, next_episode = scan_episodes_page(
        service,
        _run(service, query),
        query.require("metric"),
        labels=query.labels or {},
        episode_range=_pair(query),
        limit=max(1, query.limit or _SCAN_ROWS),
    )
    return _with_envs(page._asdict(), {"next_episode": next_episode})


def _scan_env_steps(service: QueryService, query: Query) -> Answer:
    page, after = scan_env_steps_page(
        service,
        _run(service, query),
        query.require("metric"),
        labels=query.labels or {},
        episode_range=_pair(query),
        after=query.after,
        limit=max(1, query.limit or _SCAN_ROWS),
    )
    return _with_envs(page._asdict(), {"after": after})


def _pair(query: Query) -> Range | None:
    return None if query.step_range is None else (query.step_range[0], query.step_range[1])


def _with_envs(columns: dict[str, Any], facts: dict[str, Any]) -> Answer:
    names = columns.pop("env_names")
    return Answer(encode_columns(columns, {"env_names": names, **facts}), COLUMNS_TYPE)


def _summaries(service: QueryService) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        query = decode_statistics_query(body)

        def read() -> Answer:
            rows = [service.find_run(query.workspace, query.project, run) for run in query.runs]
            columns = summaries.summary_columns(service, rows, query.metrics)
            facts = {"runs": [row.name for row in rows], "metrics": query.metrics}
            return Answer(encode_columns(columns, facts), COLUMNS_TYPE)

        return await service.in_thread(read)

    return endpoint


_READS: Final[dict[str, Callable[[QueryService, Query], Answer]]] = {
    "/query/runs": _runs,
    "/query/attributes": _attributes,
    "/query/definitions": _definitions,
    "/query/scan": _scan,
    "/query/scan_episodes": _scan_episodes,
    "/query/scan_env_steps": _scan_env_steps,
}
