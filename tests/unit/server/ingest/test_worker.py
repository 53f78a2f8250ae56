"""The owner thread: grouping, bounds, errors, stopping; and the endpoints over it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from metrana_async.errors import NotFoundError, RateLimitedError, UnavailableError
from metrana_async.server.http.endpoint import answer
from metrana_async.server.http.ingest import ingest_endpoints
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.ingest.worker import IngestWorker
from metrana_async.wire.acks import BatchStatus, decode_reply
from metrana_async.wire.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    decode_error,
    decode_message,
    encode_message,
)
from tests.unit.server.ingest.helpers import rows


class GatedService(IngestService):
    """A service whose commits can be held back, and that knows its groups."""

    def __init__(self, store, **options) -> None:
        super().__init__(store, **options)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.groups: list[int] = []
        self.breaks_on: bytes | None = None

    def ingest_many(self, bodies):
        self.entered.set()
        assert self.gate.wait(10)
        self.groups.append(len(bodies))
        if self.breaks_on in bodies:
            raise ZeroDivisionError("a bug of ours")
        return super().ingest_many(bodies)


@pytest.fixture
def service(store, clock) -> GatedService:
    return GatedService(store, clock=clock)


@asynccontextmanager
async def running(service, **options):
    worker = IngestWorker(service, **options)
    worker.start()
    try:
        yield worker
    finally:
        service.gate.set()
        await asyncio.wait_for(worker.stop(), 10)


async def entered(service) -> None:
    """Wait until the owner thread is inside the service."""
    await asyncio.get_running_loop().run_in_executor(None, service.entered.wait, 10)


@pytest.mark.asyncio
async def test_what_waits_is_one_group(make_writer, service) -> None:
    """Requests that arrive during a commit share the next one, each with its own answer."""
    writers = [make_writer() for _ in range(6)]
    bodies = [w.pages + w.seal(rows([k], [1.0])) for k, w in enumerate(writers)]
    service.gate.clear()
    async with running(service) as worker:
        first = asyncio.ensure_future(worker.ingest(bodies[0]))
        await entered(service)
        rest = [asyncio.ensure_future(worker.ingest(body)) for body in bodies[1:]]
        await asyncio.sleep(0)
        service.gate.set()
        replies = await asyncio.gather(first, *rest)
    assert service.groups == [1, 5]
    assert [r.writer_id for r in replies] == [w.writer_id for w in writers]
    assert all(r.replies[0].status is BatchStatus.STORED for r in replies)
    assert all(r.credit_bytes > 0 for r in replies)


@pytest.mark.asyncio
async def test_a_request_that_breaks_us_takes_no_other_along(make_writer, service, store) -> None:
    """The group is done again one by one; only the offender gets the error."""
    writers = [make_writer() for _ in range(3)]
    bodies = [w.pages + w.seal(rows([k], [1.0])) for k, w in enumerate(writers)]
    service.breaks_on = bodies[1]
    service.gate.clear()
    async with running(service) as worker:
        jobs = [asyncio.ensure_future(worker.ingest(body)) for body in bodies]
        await entered(service)
        service.gate.set()
        results = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(results[1], ZeroDivisionError)
    assert store.read_points(1).step.tolist() == [0, 2]


@pytest.mark.asyncio
async def test_a_full_queue_refuses_and_says_when_to_come_back(make_writer, service) -> None:
    """The bound is in bytes; what was admitted is stored."""
    writer = make_writer()
    bodies = [writer.pages + writer.seal(rows([k], [1.0])) for k in range(3)]
    service.gate.clear()
    async with running(service, queue_bytes=len(bodies[1]) + 1) as worker:
        first = asyncio.ensure_future(worker.ingest(bodies[0]))
        await entered(service)
        second = asyncio.ensure_future(worker.ingest(bodies[1]))
        await asyncio.sleep(0)
        with pytest.raises(RateLimitedError) as caught:
            await worker.ingest(bodies[2])
        assert caught.value.retry_after_s
        service.gate.set()
        for job in (first, second):
            assert (await job).replies[0].status is BatchStatus.STORED


@pytest.mark.asyncio
async def test_stop_does_what_is_queued_and_takes_no_more(make_writer, service, store) -> None:
    """A drain: queued requests are stored, later ones are told to go elsewhere."""
    writer = make_writer()
    bodies = [writer.pages + writer.seal(rows([k], [1.0])) for k in range(2)]
    service.gate.clear()
    worker = IngestWorker(service)
    worker.start()
    jobs = [asyncio.ensure_future(worker.ingest(body)) for body in bodies]
    await entered(service)
    stopping = asyncio.ensure_future(worker.stop())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError):
        await worker.ingest(bodies[0])
    service.gate.set()
    await asyncio.wait_for(stopping, 10)
    await asyncio.gather(*jobs)
    assert store.read_points(1).step.tolist() == [0, 1]
    await worker.stop()


@pytest.mark.asyncio
async def test_upkeep_that_fails_stops_nothing(make_writer, service) -> None:
    """Its error is kept, points go on."""
    writer = make_writer()
    failed = threading.Event()

    def broken(budget_s, **_):
        failed.set()
        raise OSError("bad sector")

    service.maintain = broken
    async with running(service, upkeep_interval_s=0.01) as worker:
        await asyncio.get_running_loop().run_in_executor(None, failed.wait, 10)
        await worker.ingest(writer.pages + writer.seal(rows([0], [1.0])))
        await worker.heartbeat(HeartbeatRequest(writer.run_uid, writer.writer_id))
        assert isinstance(worker.upkeep_error, OSError)


@pytest.mark.asyncio
async def test_endpoints_speak_the_wire(service, make_writer) -> None:
    """Open, ingest, heartbeat, leave and an error, bytes in and bytes out."""
    async with running(service) as worker:
        endpoints = ingest_endpoints(worker)
        request = OpenRequest("ws", "p", "over-http", "job", "never", "a" * 32)
        opened = await answer(endpoints["/writers/open"], encode_message(request))
        reply = decode_message(OpenReply, opened.body)
        assert reply.created
        writer = make_writer()
        writer.run_uid = reply.run_uid
        writer.number = int("a" * 32, 16)
        body = writer.pages + writer.seal(rows([None], [1.0]))
        stored = decode_reply((await answer(endpoints["/ingest"], body)).body)
        assert stored.acked == {0: 1}
        beat = encode_message(HeartbeatRequest(reply.run_uid, "a" * 32))
        heard = decode_message(
            HeartbeatReply, (await answer(endpoints["/writers/heartbeat"], beat)).body
        )
        assert heard.state == "running"
        gone = encode_message(LeaveRequest(reply.run_uid, "a" * 32))
        left = decode_message(
            HeartbeatReply, (await answer(endpoints["/writers/leave"], gone)).body
        )
        assert left.state == "finished"
        missing = encode_message(HeartbeatRequest("0" * 32, "a" * 32))
        refused = await answer(endpoints["/writers/heartbeat"], missing)
        assert refused.status == 404
        assert isinstance(decode_error(refused.status, refused.body), NotFoundError)
