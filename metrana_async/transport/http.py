"""The aiohttp transport: one session, one attempt per call, every foreign error mapped.

The only client module that imports aiohttp. Proxies of the environment are never used for a
server on this machine. The session is made on first use, on the loop that uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import anyio

from metrana_async.errors import (
    ConnectError,
    MetranaError,
    TransportError,
    UnavailableError,
)
from metrana_async.transport.addresses import is_this_machine, without_user
from metrana_async.transport.base import ServerAddress
from metrana_async.wire.messages import API_PREFIX, JSON_TYPE, decode_error

ANSWER_BYTES: Final = 256 << 20
_CONNECT_TIMEOUT_S: Final = 5.0
_TIMEOUT_MIN_S: Final = 0.001
_CONNECTIONS: Final = 4
_CHUNK_BYTES: Final = 1 << 18


class HttpTransport:
    """A `transport.base.Transport` over HTTP, on a Unix socket where the address has one."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        base = "http://localhost" if address.socket_path else address.url.rstrip("/")
        self._base = base + API_PREFIX

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, content_type: str = JSON_TYPE
    ) -> bytes:
        """See Transport."""
        timeout_s = max(timeout_s, _TIMEOUT_MIN_S)
        try:
            # Our own limit: aiohttp's does not cover the body of an answer that began to arrive
            # before its request was made (a proxy that mixed answers up), and rounds up.
            with anyio.fail_after(timeout_s):
                async with self._open_session().post(
                    self._base + path,
                    data=_slices(body),
                    headers={"Content-Type": content_type, "Content-Length": str(len(body))},
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=min(timeout_s, _CONNECT_TIMEOUT_S)
                    ),
                    allow_redirects=False,
                ) as response:
                    return await self._read(response)
        except aiohttp.ServerDisconnectedError as error:
            raise TransportError(f"{self._where}: the connection was cut before an answer") from (
                error
            )
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or error
            raise ConnectError(f"{self._where}: no connection: {reason}") from error
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise UnavailableError(f"{self._where}: no answer within {timeout_s:g} s") from error
        except MetranaError:
            raise
        except Exception as error:
            # Whatever the library comes up with (a warning turned error, an assertion) leaves the
            # fate of the request unknown: the same bytes are sent again, nobody's task dies of it.
            raise TransportError(f"{self._where}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """See Transport."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def _where(self) -> str:
        return self._address.socket_path or without_user(self._address.url)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise ConnectError(f"{self._where}: this transport is closed")
        if self._session is None:
            address = self._address
            connector: aiohttp.BaseConnector
            if address.socket_path:
                connector = aiohttp.UnixConnector(address.socket_path, limit=_CONNECTIONS)
            else:
                connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
            headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
            is_local = bool(address.socket_path) or is_this_machine(address.url)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=headers,
                trust_env=not is_local,
                auto_decompress=True,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES:
                raise UnavailableError(f"{self._where}: an answer of over {ANSWER_BYTES} bytes")
        if response.status >= 400:
            raise self._answered_error(response, bytes(body))
        # A proxy's or a portal's page is no answer of ours, whatever its status says.
        if response.status != 200 or not response.content_type.startswith("application/"):
            raise UnavailableError(
                f"{self._where}: answered {response.status} with {response.content_type}"
            )
        return bytes(body)

    @staticmethod
    def _answered_error(response: aiohttp.ClientResponse, body: bytes) -> MetranaError:
        error = decode_error(response.status, body)
        if isinstance(error, TransportError) and error.retry_after_s is None:
            header = response.headers.get("Retry-After", "")
            error.retry_after_s = float(header) if header.isdecimal() else None
        return error


async def _slices(body: bytes) -> AsyncIterator[memoryview]:
    """The body in pieces, none of them copied; the loop breathes in between."""
    view = memoryview(body)
    for at in range(0, len(view), _CHUNK_BYTES):
        if at:
            await asyncio.sleep(0)
        yield view[at : at + _CHUNK_BYTES]
