"""The query endpoints in memory: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import threading

import orjson
import pytest

from metrana_async.server.http.endpoint import answer
from metrana_async.server.http.query import query_endpoints
from metrana_async.server.query.service import QueryService
from metrana_async.wire.answers import decode_columns
from metrana_async.wire.messages import COLUMNS_TYPE
from tests.unit.server.query.stored_run import StoredRun


@pytest.fixture
def stored():
    return StoredRun()


@pytest.fixture
def endpoints(stored):
    service = QueryService(stored.store)
    yield query_endpoints(service)
    service.close()


async def ask(endpoints, path, **query):
    return await answer(endpoints[path], orjson.dumps(query))


@pytest.mark.asyncio
async def test_a_series_is_answered_as_columns(stored, endpoints):
    """The binary answer holds every point under its own content type."""
    stored.points(stored.series("x"), stored.writer("a" * 32), [(0, 1.0), (5, 2.0)])
    found = await ask(endpoints, "/query/series", project="proj", run="run", metric="x")
    assert (found.status, found.content_type) == (200, COLUMNS_TYPE)
    columns = decode_columns(found.body)
    assert columns.integers("step").tolist() == [0, 5]
    assert columns.floats("value").tolist() == [1.0, 2.0]


@pytest.mark.asyncio
@pytest.mark.parametrize(("value", "text"), [(float("nan"), "nan"), (float("-inf"), "-inf")])
async def test_a_number_that_json_lacks_is_a_string(stored, endpoints, value, text):
    """NaN and infinities are words, never null and never bare tokens."""
    stored.points(stored.series("x"), stored.writer("a" * 32), [(0, value)])
    found = await ask(endpoints, "/query/aggregate", run="run", metric="x", function="min")
    assert orjson.loads(found.body) == {"value": text}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ({"run": "none", "metric": "x"}, 404, "'none'"),
        ({"run": "run", "metric": "y"}, 404, "'y'"),
        ({"run": "run"}, 400, "metric"),
        ({"metric": "x"}, 400, "run"),
        ({"run": "run", "metric": 5}, 400, "metric"),
        ({"run": "run", "metric": "x", "labels": {"a": 1}}, 400, "labels"),
        ({"run": "run", "metric": "x", "step_range": [5, 1]}, 400, "step_range"),
        ({"run": "run", "metric": "x", "step_range": [0, 2**63]}, 400, "step_range"),
        ({"run": "run", "metric": "x", "episode": True}, 400, "episode"),
        ({"run": "run", "metric": "x", "sample": 100}, 400, "sample"),
    ],
)
async def test_a_bad_question_names_what_is_wrong(stored, endpoints, query, status, word):
    """Errors are answers with the offending name in them."""
    stored.series("x")
    found = await ask(endpoints, "/query/series", **query)
    assert found.status == status
    assert word in orjson.loads(found.body)["error"]["message"]


@pytest.mark.asyncio
async def test_bytes_that_are_no_query_are_refused(endpoints):
    """Not JSON, or not an object: a 400, never a 500."""
    for body in (b"", b"[1]", b"\xff"):
        found = await answer(endpoints["/query/runs"], body)
        assert found.status == 400


@pytest.mark.asyncio
async def test_a_slow_read_does_not_hold_up_the_event_loop(stored):
    """While a read blocks in its thread, the loop goes on."""
    release, has_begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class SlowStore:
        def __getattr__(self, name):
            return getattr(stored.store, name)

        def runs(self):
            loop.call_soon_threadsafe(has_begun.set)
            assert release.wait(10)
            return stored.store.runs()

    service = QueryService(SlowStore())
    asking = asyncio.ensure_future(ask(query_endpoints(service), "/query/projects"))
    await asyncio.wait_for(has_begun.wait(), 10)
    assert not asking.done()
    release.set()
    assert orjson.loads((await asking).body)[0]["project"] == "proj"
    service.close()
