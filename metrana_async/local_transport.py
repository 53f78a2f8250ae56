"""The transport to this user's local server, which brings the server back when it is gone.

The local server belongs to the programs that log to it: where it was killed or ran out of memory,
nobody else would start it again. Requests that find nobody listening look for it, wait a moment
for whoever else may be starting it, and then start it; meanwhile the caller keeps its data, and a
request that was not sent is simply sent to the new one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from metrana_async import local
from metrana_async.errors import ConnectError, InitError
from metrana_async.transport.base import ServerAddress, Transport
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import JSON_TYPE

START_AFTER_S: Final = 1.0
"""How long a server is missed before it is started again: its own supervisor comes first."""
START_EVERY_S: Final = 3.0
_LOOK_EVERY_S: Final = 0.1
_FIND_TIMEOUT_S: Final = 2.0
_START_TIMEOUT_S: Final = 20.0


class LocalServerTransport:
    """A `transport.base.Transport` to the local server of a data directory."""

    def __init__(self, address: ServerAddress | None, data_dir: str | None) -> None:
        """Make a transport.

        Args:
            address: where the server was found; None = it was not, yet.
            data_dir: its store; None = `locations` decides.
        """
        self._data_dir = data_dir
        self._inner: Transport = _Unfound() if address is None else HttpTransport(address)
        self._is_closed = False
        self._looking = asyncio.Lock()
        self._missed_since_s: float | None = None
        self._next_start_s = 0.0

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        deadline_s = time.monotonic() + timeout_s
        inner = self._inner
        try:
            answer = await inner.post(path, body, timeout_s=timeout_s, content_type=content_type)
        except ConnectError as error:
            # No connection, so nothing was sent: asking the next server repeats nothing.
            if self._is_closed or not await self._find_again(inner, error, deadline_s):
                raise
        else:
            self._missed_since_s = None
            return answer
        left_s = max(0.0, deadline_s - time.monotonic())
        return await self._inner.post(path, body, timeout_s=left_s, content_type=content_type)

    async def close(self) -> None:
        """See Transport."""
        self._is_closed = True
        await self._inner.close()

    async def _find_again(self, failed: Transport, error: ConnectError, deadline_s: float) -> bool:
        """Look for the server until the deadline, start it once it is missed long enough."""
        async with self._looking:
            if self._inner is not failed:
                return True  # another request has found it
            if self._missed_since_s is None:
                self._missed_since_s = time.monotonic()
            start_s = max(self._missed_since_s + START_AFTER_S, self._next_start_s)
            while not self._is_closed:
                try:
                    address = await self._found(deadline_s, is_to_start=time.monotonic() >= start_s)
                except InitError as trouble:
                    raise ConnectError(trouble.message, hint=trouble.hint) from error
                if address is not None:
                    await self._adopt(address)
                    return True
                if time.monotonic() + _LOOK_EVERY_S >= deadline_s:
                    return False
                await asyncio.sleep(_LOOK_EVERY_S)
            return False

    async def _found(self, deadline_s: float, *, is_to_start: bool) -> ServerAddress | None:
        left_s = max(0.0, deadline_s - time.monotonic())
        if not is_to_start:
            return await local.find(self._data_dir, timeout_s=min(left_s, _FIND_TIMEOUT_S))
        self._next_start_s = time.monotonic() + START_EVERY_S
        return await local.find_or_start(self._data_dir, timeout_s=min(left_s, _START_TIMEOUT_S))

    async def _adopt(self, address: ServerAddress) -> None:
        if self._is_closed:
            return
        before, self._inner = self._inner, HttpTransport(address)
        self._missed_since_s = None
        await before.close()


class _Unfound:
    """The way to a server that was not found yet."""

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        del body, timeout_s, content_type
        raise ConnectError(f"the local server was not found yet ({path})")

    async def close(self) -> None:
        """See Transport."""
