"""The endpoints that writers talk to; see wire.messages for the table."""

from __future__ import annotations

from metrana_async.server.http.endpoint import Answer, Endpoint
from metrana_async.server.ingest.worker import IngestWorker
from metrana_async.wire.acks import encode_reply
from metrana_async.wire.messages import (
    HeartbeatRequest,
    LeaveRequest,
    OpenRequest,
    ReserveRequest,
    SeedsRequest,
    decode_message,
    encode_message,
)


def ingest_endpoints(worker: IngestWorker) -> dict[str, Endpoint]:
    """Endpoints by path below the API prefix. Errors are raised; `endpoint.answer` maps them."""

    async def open_writer(body: bytes) -> Answer:
        return Answer(encode_message(await worker.open(decode_message(OpenRequest, body))))

    async def seeds(body: bytes) -> Answer:
        return Answer(encode_message(await worker.seeds(decode_message(SeedsRequest, body))))

    async def ingest(body: bytes) -> Answer:
        return Answer(encode_reply(await worker.ingest(body)))

    async def heartbeat(body: bytes) -> Answer:
        request = decode_message(HeartbeatRequest, body)
        return Answer(encode_message(await worker.heartbeat(request)))

    async def leave(body: bytes) -> Answer:
        return Answer(encode_message(await worker.leave(decode_message(LeaveRequest, body))))

    async def reserve(body: bytes) -> Answer:
        request = decode_message(ReserveRequest, body)
        return Answer(encode_message(await worker.reserve_episodes(request)))

    return {
        "/writers/open": open_writer,
        "/writers/seeds": seeds,
        "/ingest": ingest,
        "/writers/heartbeat": heartbeat,
        "/writers/leave": leave,
        "/episodes/reserve": reserve,
    }
