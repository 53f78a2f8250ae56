"""The endpoints of statistics: a `wire.statistics.StatisticsQuery` in, JSON or columns out.

As all queries they run on the query service's threads, so that no reader holds up ingestion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from metrana_async.server.http.endpoint import Answer, Endpoint
from metrana_async.server.query import curves, environments, statistics
from metrana_async.server.query.service import QueryService
from metrana_async.wire.answers import encode_columns
from metrana_async.wire.messages import COLUMNS_TYPE
from metrana_async.wire.statistics import StatisticsQuery, decode_statistics_query

_Read = Callable[[QueryService, StatisticsQuery], Answer]


def statistics_endpoints(service: QueryService) -> dict[str, Endpoint]:
    """Endpoints by path, to be mounted under ``API_PREFIX``."""
    return {path: _endpoint(service, read) for path, read in _READS.items()}


def _endpoint(service: QueryService, read: _Read) -> Endpoint:
    async def endpoint(body: bytes) -> Answer:
        query = decode_statistics_query(body)
        return await service.in_thread(lambda: read(service, query))

    return endpoint


def _columns(table: statistics.Table) -> Answer:
    return Answer(encode_columns(table.columns, table.facts), COLUMNS_TYPE)


def _buckets(service: QueryService, query: StatisticsQuery) -> Answer:
    return _columns(curves.buckets(service, query))


def _group_runs(service: QueryService, query: StatisticsQuery) -> Answer:
    return _columns(statistics.group_runs(service, query))


def _rl_info(service: QueryService, query: StatisticsQuery) -> Answer:
    return Answer(orjson.dumps(environments.rl_info(service, query)))


def _table(service: QueryService, query: StatisticsQuery) -> Answer:
    return _columns(environments.environment_table(service, query))


def _across(service: QueryService, query: StatisticsQuery) -> Answer:
    return _columns(environments.aggregate_environments(service, query))


_READS: Final[dict[str, _Read]] = {
    "/query/buckets": _buckets,
    "/query/group_runs": _group_runs,
    "/query/rl_info": _rl_info,
    "/query/environment_table": _table,
    "/query/across": _across,
}
