"""The endpoints that only the dashboard asks: a `wire.statistics.StatisticsQuery` in, lists out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from metrana_async.server.http.endpoint import Answer, Endpoint
from metrana_async.server.query import dashboard
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.statistics import Table
from metrana_async.wire.answers import encode_columns
from metrana_async.wire.messages import COLUMNS_TYPE
from metrana_async.wire.statistics import StatisticsQuery, decode_statistics_query

_Read = Callable[[QueryService, StatisticsQuery], Answer]


def dashboard_endpoints(service: QueryService) -> dict[str, Endpoint]:
    """Endpoints by path, to be mounted under ``API_PREFIX``."""
    return {path: _endpoint(service, read) for path, read in _READS.items()}


def _endpoint(service: QueryService, read: _Read) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        query = decode_statistics_query(body)
        return await service.in_thread(lambda: read(service, query))

    return endpoint


def _json(content: Any) -> Answer:
    return Answer(orjson.dumps(content))


def _columns(table: Table) -> Answer:
    return Answer(encode_columns(table.columns, table.facts), COLUMNS_TYPE)


_READS: Final[dict[str, _Read]] = {
    "/query/all_projects": lambda service, _: _json(dashboard.projects(service)),
    "/query/curves": lambda service, query: _json(dashboard.curves(service, query)),
    "/query/episode_table": lambda service, query: _columns(
        dashboard.episode_table(service, query)
    ),
    "/query/env_trends": lambda service, query: _columns(dashboard.env_trends(service, query)),
}
