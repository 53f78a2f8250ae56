"""Runs on a server in memory, and what it has stored of them."""

from __future__ import annotations

import metrana_async as metrana
from metrana_async.testing import MemoryServer
from metrana_async.wire.model import Family


async def awaited(pending):
    """A coroutine of what may only be awaitable."""
    return await pending


def open_run(server: MemoryServer, **arguments):
    """A run of this server, not awaited."""
    arguments = {"project_name": "p", "run_name": "r", "quiet": True, **arguments}
    return metrana.init(transport=server.transport(), **arguments)


def values(server: MemoryServer, metric: str) -> dict[int, float]:
    """Stored points of a standard metric by step, the newest of each."""
    store = server.store
    for run in store.runs():
        for row in store.run_contents(run.run_no).series:
            if row.definition.metric == metric and row.definition.family is Family.STANDARD:
                found = store.read_points(row.series_no)
                return dict(zip(found.step.tolist(), found.value.tolist(), strict=True))
    return {}
