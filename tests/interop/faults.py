"""Transports that misbehave on purpose, over the real one."""

from __future__ import annotations

import asyncio
import random

from metrana_async.errors import ConnectError, UnavailableError
from metrana_async.local import find
from metrana_async.transport.base import Transport
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import JSON_TYPE


class FaultyTransport:
    """Fails before sending, or loses the answer of a request that was served, at random.

    Attributes:
        faults: how many faults have fired.
        ingest_requests: requests that reached `/ingest`.
    """

    def __init__(
        self,
        data_dir: str,
        *,
        seed: int,
        fail_before: float = 0,
        lose_answer: float = 0,
        delay_s: float = 0,
    ) -> None:
        self._data_dir = data_dir
        self._random = random.Random(seed)
        self._fail_before, self._lose_answer, self._delay_s = fail_before, lose_answer, delay_s
        self._inner: Transport | None = None
        self.faults = 0
        self.ingest_requests = 0

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        if self._inner is None:
            address = await find(self._data_dir)
            assert address is not None
            self._inner = HttpTransport(address)
        if path != "/ingest":
            return await self._inner.post(
                path, body, timeout_s=timeout_s, content_type=content_type
            )
        if self._random.random() < self._fail_before:
            self.faults += 1
            raise ConnectError("refused by the test")
        await asyncio.sleep(self._random.random() * self._delay_s)
        self.ingest_requests += 1
        answer = await self._inner.post(path, body, timeout_s=timeout_s, content_type=content_type)
        if self._random.random() < self._lose_answer:
            self.faults += 1
            raise UnavailableError("the answer was lost by the test")
        return answer

    async def close(self) -> None:
        """See Transport."""
        if self._inner is not None:
            await self._inner.close()
