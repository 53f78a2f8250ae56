"""Transports that misbehave on purpose, over the real one."""

from __future__ import annotations

from metrana_async import testing
from metrana_async.local import find
from metrana_async.transport.base import Transport
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import JSON_TYPE


class LocalTransport:
    """The real transport to the server of a data directory, found on first use."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._inner: Transport | None = None

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        if self._inner is None:
            address = await find(self._data_dir)
            assert address is not None
            self._inner = HttpTransport(address)
        return await self._inner.post(path, body, timeout_s=timeout_s, content_type=content_type)

    async def close(self) -> None:
        """See Transport."""
        if self._inner is not None:
            await self._inner.close()


def faulty_transport(data_dir: str, **faults) -> testing.FaultyTransport:
    """A faulty transport to the server of a data directory."""
    return testing.FaultyTransport(LocalTransport(data_dir), **faults)
