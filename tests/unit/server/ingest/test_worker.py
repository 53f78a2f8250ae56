"""The owner thread: grouping, bounds, errors, stopping; and the endpoints over it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from metrana_async.errors import (
    NotFoundError,
    ProtocolError,
    RateLimitedError,
    UnavailableError,
)
from metrana_async.server.http.endpoint import answer
from metrana_async.server.http.ingest import ingest_endpoints
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.ingest.worker import IngestWorker
from metrana_async.wire.acks import BatchStatus, decode_reply
from metrana_async.wire.limits import REQUEST_BYTES
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
async def test_a_greedy_writer_does_not_make_others_wait(make_writer, service) -> None:
    """64 writers, one with 200 requests queued first: the next commit has one of each."""
    writers = [make_writer() for _ in range(64)]
    greedy, others = writers[0], writers[1:]
    order = []

    def note(body, writer):
        job = asyncio.ensure_future(worker.ingest(body))
        job.add_done_callback(lambda _: order.append(writer.number))
        return job

    bodies = [greedy.pages + greedy.seal(rows([None], [1.0])) for _ in range(200)]
    service.gate.clear()
    async with running(service) as worker:
        jobs = [note(bodies[0], greedy)]
        await entered(service)
        jobs += [note(body, greedy) for body in bodies[1:]]
        jobs += [note(w.pages + w.seal(rows([0], [1.0])), w) for w in others]
        await asyncio.sleep(0)
        service.gate.set()
        replies = await asyncio.gather(*jobs)
    assert all(r.replies[0].status is BatchStatus.STORED for r in replies)
    assert service.groups[0] == 1
    assert {w.number for w in others} <= set(order[: 1 + service.groups[1]])


@pytest.mark.asyncio
async def test_a_greedy_writer_leaves_room_and_credit_to_others(make_writer, service) -> None:
    """It is refused while others are admitted, and is told less than they are."""
    greedy, other = make_writer(), make_writer()
    service.gate.clear()
    body = greedy.pages + greedy.seal(rows([0], [1.0]))
    async with running(service, queue_bytes=20 * len(body)) as worker:
        jobs = [asyncio.ensure_future(worker.ingest(body))]
        await entered(service)
        jobs += [asyncio.ensure_future(worker.ingest(body)) for _ in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimitedError):
            await worker.ingest(body)
        jobs.append(
            asyncio.ensure_future(worker.ingest(other.pages + other.seal(rows([1], [1.0]))))
        )
        await asyncio.sleep(0)
        service.gate.set()
        assert {r.replies[0].status for r in await asyncio.gather(*jobs)} == {
            BatchStatus.STORED,
            BatchStatus.DUPLICATE,
        }


@pytest.mark.asyncio
async def test_credit_shrinks_while_the_store_is_slow(make_writer, service) -> None:
    """What waits takes from everybody's credit; once it is stored the credit is whole again."""
    writer = make_writer()
    body = writer.pages + writer.seal(rows([0], [1.0]))
    service.gate.clear()
    async with running(service) as worker:
        assert worker.credit_bytes(writer.writer_id) == REQUEST_BYTES
        first = asyncio.ensure_future(worker.ingest(body))
        await entered(service)
        waiting = [asyncio.ensure_future(worker.ingest(b"x" * REQUEST_BYTES))]
        await asyncio.sleep(0)
        assert worker.credit_bytes(writer.writer_id) == REQUEST_BYTES // 3
        waiting.append(asyncio.ensure_future(worker.ingest(body)))
        await asyncio.sleep(0)
        assert worker.credit_bytes(writer.writer_id) < REQUEST_BYTES // 3
        service.gate.set()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert (await worker.ingest(body)).credit_bytes == REQUEST_BYTES


@pytest.mark.asyncio
async def test_an_empty_body_is_answered(make_writer, service) -> None:
    """It is refused like any other that is no request, and does not wait for ever."""
    async with running(service) as worker:
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(worker.ingest(b""), 10)


@pytest.mark.asyncio
async def test_groups_and_everything_else_take_turns(make_writer, service) -> None:
    """Neither a flood of points nor one of openings holds up the other."""
    writer = make_writer()
    bodies = [writer.pages + writer.seal(rows([k], [1.0])) for k in range(3)]
    done = []
    service.gate.clear()
    async with running(service) as worker:
        first = asyncio.ensure_future(worker.ingest(bodies[0]))
        await entered(service)
        again = OpenRequest("ws", "proj", "run", "job", "never", writer.writer_id)
        jobs = [first]
        for n in range(3):
            jobs.append(asyncio.ensure_future(worker.open(again)))
            jobs[-1].add_done_callback(lambda _, n=n: done.append(f"open {n}"))
        jobs.append(asyncio.ensure_future(worker.ingest(bodies[1])))
        jobs[-1].add_done_callback(lambda _: done.append("points"))
        await asyncio.sleep(0)
        service.gate.set()
        await asyncio.gather(*jobs)
    assert done == ["open 0", "points", "open 1", "open 2"]


@pytest.mark.asyncio
async def test_heartbeats_that_wait_share_a_commit(make_writer, service, store) -> None:
    """64 of them are one commit on a slow store; one of a stranger is refused alone."""
    writers = [make_writer() for _ in range(64)]
    commits = []
    commit = store.commit
    store.commit = lambda changes: (commits.append(len(changes.writers)), commit(changes))
    service.gate.clear()
    body = writers[0].pages + writers[0].seal(rows([0], [1.0]))
    async with running(service) as worker:
        first = asyncio.ensure_future(worker.ingest(body))
        await entered(service)
        stranger = HeartbeatRequest(writers[0].run_uid, "f" * 32)
        beats = [HeartbeatRequest(w.run_uid, w.writer_id, {"accepted": 7}) for w in writers]
        jobs = [asyncio.ensure_future(worker.heartbeat(b)) for b in (*beats, stranger)]
        await asyncio.sleep(0)
        service.gate.set()
        *heard, refused = await asyncio.gather(*jobs, return_exceptions=True)
        await first
    assert isinstance(refused, NotFoundError)
    assert {reply.state for reply in heard} == {"running"}
    assert commits[:2] == [1, 64]
    assert [w.counters for w in store.run_contents(1).writers] == [{"accepted": 7}] * 64


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
