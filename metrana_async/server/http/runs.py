"""The endpoints that change runs from outside: a `wire.run_life.RunChange` in, JSON out.

A name is looked up on the query service's threads, the change is made by the ingest worker, which
owns every run; in between the run goes by its uid.
"""

from __future__ import annotations

from typing import Any

import orjson

from metrana_async.server.http.endpoint import Answer, Endpoint
from metrana_async.server.ingest.worker import IngestWorker
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.base import RunRow
from metrana_async.wire.run_life import RunChange, decode_run_change


def run_endpoints(worker: IngestWorker, service: QueryService) -> dict[str, Endpoint]:
    """Endpoints by path below the API prefix. Errors are raised; `endpoint.answer` maps them."""

    async def find(change: RunChange) -> RunRow:
        return await service.in_thread(
            lambda: service.find_run(change.workspace, change.project, change.run)
        )

    async def change_run(body: bytes) -> Answer:
        change = decode_run_change(body)
        row = await find(change)
        await worker.change_run(row.run_uid, change)
        content: dict[str, Any] = await service.in_thread(
            lambda: service.run(service.find_run(row.workspace, row.project, row.run_uid))
        )
        return Answer(orjson.dumps(content))

    async def delete_run(body: bytes) -> Answer:
        row = await find(decode_run_change(body))
        await worker.delete_run(row.run_uid)
        return Answer(orjson.dumps({"run_uid": row.run_uid, "name": row.name}))

    return {"/runs/change": change_run, "/runs/delete": delete_run}
