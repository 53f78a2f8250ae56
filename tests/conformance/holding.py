"""A transport that keeps batches back: how a process looks whose last batches never arrived."""

from __future__ import annotations

from metrana_async.local import find
from metrana_async.transport.base import Transport
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.acks import BatchReply, BatchStatus, IngestReply, encode_reply
from metrana_async.wire.batch import decode_batch
from metrana_async.wire.frames import FRAME_BATCH, iter_frames
from metrana_async.wire.messages import JSON_TYPE, OpenReply, decode_message


class HoldingTransport:
    """Passes everything but `/ingest`; that it keeps in `held` and answers as stored."""

    def __init__(self, data_dir: str, inner: Transport | None = None) -> None:
        self._data_dir = data_dir
        self._inner = inner
        self._generation = ""
        self._acked: dict[int, int] = {}
        self._released = 0
        self.held: list[bytes] = []

    async def _transport(self) -> Transport:
        if self._inner is None:
            address = await find(self._data_dir)
            assert address is not None
            self._inner = HttpTransport(address)
        return self._inner

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        inner = await self._transport()
        if path == "/ingest":
            return await self._hold(bytes(body), inner, timeout_s, content_type)
        answer = await inner.post(path, body, timeout_s=timeout_s, content_type=content_type)
        if path == "/writers/open":
            self._generation = decode_message(OpenReply, answer).generation
        return answer

    async def _hold(
        self, body: bytes, inner: Transport, timeout_s: float, content_type: str
    ) -> bytes:
        while self._released:
            # What was held before a flush goes first, in order.
            await inner.post(
                "/ingest", self.held.pop(0), timeout_s=timeout_s, content_type=content_type
            )
            self._released -= 1
        self.held.append(body)
        batches = [decode_batch(f) for f in iter_frames(body) if f.type == FRAME_BATCH]
        replies = []
        for batch in batches:
            self._acked[batch.lane] = batch.seq
            counts = {"stored": batch.points_count}
            replies.append(BatchReply(batch.lane, batch.seq, BatchStatus.STORED, counts))
        reply = IngestReply(
            run_uid=batches[0].run_uid,
            writer_id=batches[0].writer_id,
            replies=tuple(replies),
            acked=dict(self._acked),
            generation=self._generation,
            credit_bytes=1 << 20,
        )
        return encode_reply(reply)

    def release(self) -> None:
        """What is held now may go: it is delivered before anything later."""
        self._released = len(self.held)

    async def close(self) -> None:
        """See Transport."""
        if self._inner is not None:
            await self._inner.close()
