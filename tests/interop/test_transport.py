"""The real transport against a real server: sizes, cuts and foreign answers."""

from __future__ import annotations

import asyncio
import warnings

import numpy as np
import pytest

from metrana_async.errors import AuthError, ConnectError, NotFoundError, UnavailableError
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport


def test_a_request_of_many_mebibytes_is_sent_under_warnings_as_errors(place):
    """A large body brings no library warning, and so cannot kill the sender (`-W error`)."""
    values = np.random.default_rng(0).standard_normal((512, 4096), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with place.init() as run:
            run.log_rl_environment_step("wide", values, 0, [f"env{i}" for i in range(512)])
            assert run.flush(timeout_secs=30).committed == values.size
    with place.reader() as reader:
        assert np.array_equal(reader.env_series("run", "wide", env_id="env511").value, values[511])


async def _post(address: ServerAddress, path: str = "/health") -> bytes:
    transport = HttpTransport(address)
    try:
        return await transport.post(path, b"", timeout_s=2)
    finally:
        await transport.close()


def test_tcp_needs_the_token_and_the_socket_does_not(server):
    """Over TCP a missing or wrong token is refused; the private socket needs none."""
    address = server.address
    for token in (None, "wrong"):
        with pytest.raises(AuthError):
            asyncio.run(_post(ServerAddress(address.url, token=token)))
    assert b"protocol" in asyncio.run(_post(ServerAddress(address.url, token=address.token)))
    assert b"protocol" in asyncio.run(_post(ServerAddress(address.url, address.socket_path)))


def test_an_unknown_endpoint_is_named(server):
    """A wrong path is a NotFoundError that names it."""
    with pytest.raises(NotFoundError, match="/nowhere"):
        asyncio.run(_post(server.address, "/nowhere"))


def test_nobody_listening_is_a_connect_error(tmp_path):
    """A dead address is retryable and says where it is."""
    with pytest.raises(ConnectError, match="nobody.sock"):
        asyncio.run(_post(ServerAddress("http://127.0.0.1:9", str(tmp_path / "nobody.sock"))))


@pytest.mark.asyncio
async def test_a_server_that_never_answers_costs_the_timeout_only():
    """Accepting and never answering ends at the deadline, as a retryable error."""

    async def silence(reader, writer):
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()

    listener = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    transport = HttpTransport(ServerAddress(f"http://127.0.0.1:{port}"))
    try:
        with pytest.raises(UnavailableError, match="no answer within"):
            await transport.post("/health", b"", timeout_s=0.2)
    finally:
        await transport.close()
        await asyncio.wait_for(gone.wait(), 10)
        listener.close()
        await listener.wait_closed()


@pytest.mark.asyncio
async def test_an_answer_that_nobody_asked_for_cannot_hold_up_the_next_request():
    """The beginning of a stray answer on a kept connection: the next request ends in time."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    gone = asyncio.Event()
    strayed = asyncio.Event()

    async def answer_twice(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head % 2 + b"{}")
        await asyncio.sleep(0.05)  # so that it arrives when the first answer has been read
        writer.write(head % 100 + b"{")
        await writer.drain()
        strayed.set()
        await reader.read()
        writer.close()
        gone.set()

    listener = await asyncio.start_server(answer_twice, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    transport = HttpTransport(ServerAddress(f"http://127.0.0.1:{port}"))
    try:
        assert await transport.post("/health", b"", timeout_s=5) == b"{}"
        await asyncio.wait_for(strayed.wait(), 10)
        await asyncio.sleep(0.05)  # until the stray bytes are in
        with pytest.raises(UnavailableError, match="no answer within"):
            await asyncio.wait_for(transport.post("/health", b"", timeout_s=0.2), 10)
    finally:
        await transport.close()
        await asyncio.wait_for(gone.wait(), 10)
        listener.close()
        await listener.wait_closed()
