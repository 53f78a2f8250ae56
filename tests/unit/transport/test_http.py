"""Facts about the HTTP transport: every failure is one of our errors."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from metrana_async.errors import (
    AuthError,
    ConnectError,
    RateLimitedError,
    RunAlreadyExistsError,
    TransportError,
    UnavailableError,
)
from metrana_async.transport.addresses import is_this_machine
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport
from metrana_async.wire.messages import API_PREFIX, encode_error

pytestmark = pytest.mark.asyncio


class Site:
    """A real HTTP server whose answers the test chooses."""

    def __init__(self, handler) -> None:
        self._handler = handler

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aexit__(self, *_) -> None:
        await self._runner.cleanup()


async def ask(url: str, *, token: str | None = None, timeout_s: float = 5.0) -> bytes:
    transport = HttpTransport(ServerAddress(url, token=token))
    try:
        return await transport.post("/x", b"body", timeout_s=timeout_s)
    finally:
        await transport.close()


async def test_a_request_carries_path_body_and_token():
    """The body goes to the API's path, with the bearer token, and the answer comes back."""

    async def handler(request):
        assert request.path == API_PREFIX + "/x"
        assert request.headers["Authorization"] == "Bearer s3cret"
        return web.Response(body=await request.read() + b"!", content_type="application/json")

    async with Site(handler) as url:
        assert await ask(url, token="s3cret") == b"body!"


@pytest.mark.parametrize(
    "error",
    [AuthError("no"), RunAlreadyExistsError("taken"), UnavailableError("full")],
    ids=lambda e: e.code,
)
async def test_an_error_answer_is_that_error(error):
    """The server's error crosses the wire as its class."""

    async def handler(request):
        status, body = encode_error(error)
        return web.Response(status=status, body=body, content_type="application/json")

    async with Site(handler) as url:
        with pytest.raises(type(error), match=error.message):
            await ask(url)


async def test_retry_after_of_a_proxy_is_read():
    """A 429 without our body still brings its pause."""

    async def handler(request):
        error = RateLimitedError("slow")
        body = encode_error(error)[1]
        return web.Response(status=429, body=body, headers={"Retry-After": "7"})

    async with Site(handler) as url:
        with pytest.raises(RateLimitedError) as caught:
            await ask(url)
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize(
    "response",
    [
        {"status": 200, "text": "<html>login</html>", "content_type": "text/html"},
        {"status": 302, "headers": {"Location": "http://elsewhere"}},
        {"status": 502, "text": "bad gateway"},
    ],
)
async def test_a_strangers_page_is_no_answer(response):
    """Portals, redirects and gateways are unavailable servers, and are retried."""

    async def handler(request):
        return web.Response(**response)

    async with Site(handler) as url:
        with pytest.raises(UnavailableError) as caught:
            await ask(url)
    assert caught.value.retryable


async def test_a_silent_server_times_out():
    """No answer in time is unavailable."""

    async def handler(request):
        await asyncio.sleep(30)

    async with Site(handler) as url:
        with pytest.raises(UnavailableError, match=r"within 0\.1 s"):
            await ask(url, timeout_s=0.1)


async def test_a_cut_connection_is_a_transport_error():
    """A connection that ends before an answer has the plain code: it may be stale."""

    async def handler(request):
        request.transport.close()
        return web.Response()

    async with Site(handler) as url:
        with pytest.raises(TransportError) as caught:
            await ask(url)
    assert caught.value.code == "transport"


async def test_nobody_listens():
    """A refused connection says where."""
    with pytest.raises(ConnectError, match="127.0.0.1:1"):
        await ask("http://127.0.0.1:1")


async def test_a_closed_transport_refuses():
    """After close nothing is sent, and closing again is allowed."""
    transport = HttpTransport(ServerAddress("http://127.0.0.1:1"))
    await transport.close()
    await transport.close()
    with pytest.raises(ConnectError, match="closed"):
        await transport.post("/x", b"", timeout_s=1)


async def test_a_unix_socket_is_preferred(tmp_path):
    """Where the address has a socket, the URL is not used."""
    path = str(tmp_path / "s.sock")

    async def handler(request):
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    transport = HttpTransport(ServerAddress("http://127.0.0.1:1", socket_path=path))
    assert await transport.post("/x", b"", timeout_s=5) == b"{}"
    await transport.close()
    await runner.cleanup()


async def test_proxies_are_not_used_for_this_machine(monkeypatch):
    """A proxy of the environment never sees requests to a local server."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")

    async def handler(request):
        return web.Response(body=b"{}", content_type="application/json")

    async with Site(handler) as url:
        assert await ask(url) == b"{}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:80", True),
        ("http://localhost", True),
        ("http://[::1]:80", True),
        ("https://metrics.example", False),
        ("http://10.0.0.1", False),
    ],
)
async def test_what_is_this_machine(url, expected):
    """Loopback names and addresses are this machine, nothing else is."""
    assert is_this_machine(url) is expected
