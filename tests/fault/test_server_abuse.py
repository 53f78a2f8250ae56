"""Bytes on a server's socket that no client of ours sends."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from metrana_async.wire.acks import BatchStatus, decode_reply
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.messages import FRAMES_TYPE
from metrana_async.wire.model import Batch
from tests.conformance.runner import ServerProcess
from tests.fault.conftest import Site
from tests.fault.points import log_item

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of these tests' own; whatever strangers send, its log says nothing of it."""
    process = ServerProcess(tmp_path_factory.mktemp("store") / "data")
    yield process
    assert process.stop() == ""


def host_and_port(site: Site) -> tuple[str, int]:
    host, _, port = site.server.address.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def connected(site: Site) -> socket.socket:
    return socket.create_connection(host_and_port(site), timeout=20)


def exchange(site: Site, data: bytes) -> bytes:
    """Send bytes and read until the server hangs up."""
    answer = b""
    with connected(site) as made, contextlib.suppress(ConnectionError):
        made.sendall(data)
        while part := made.recv(65536):
            answer += part
    return answer


def head(site: Site, *lines: str, path: str = "/health") -> bytes:
    token = f"Authorization: Bearer {site.server.address.token}"
    first = f"POST /api/v1{path} HTTP/1.1"
    return "\r\n".join([first, "Host: x", token, *lines, "", ""]).encode()


def is_alive(site: Site) -> bool:
    answer = exchange(site, head(site, "Content-Length: 0", "Connection: close"))
    return answer.startswith(b"HTTP/1.1 200")


SMUGGLED = b"POST /api/v1/runs/delete HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.fault_row("H7")
@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 70"),
        ("Content-Length: +5",),
        ("Content-Length: -1",),
        ("Content-Length: 99999999999999999999",),
        ("Transfer-Encoding: identity, chunked, x",),
        ("X-Long: " + "x" * 100_000,),
        tuple(f"X-{n}: x" for n in range(50_000)),
        ("Bad Header: x",),
        ("X: a\0b",),
    ],
    ids=lambda lines: lines[0][:24],
)
def test_requests_that_two_readers_would_cut_differently_are_refused(
    site: Site, lines: tuple[str, ...]
) -> None:
    """One refusal or none, never a second request out of the first one's body."""
    answer = exchange(site, head(site, *lines) + b"0\r\n\r\n" + SMUGGLED)
    assert answer.count(b"HTTP/1.1 2") == 0, answer[:300]
    assert answer.count(b"HTTP/1.1 ") <= 1, answer[:300]
    assert is_alive(site)


@pytest.mark.fault_row("H7")
def test_pipelined_requests_are_answered_in_order(site: Site) -> None:
    """Three at once on one connection: three answers."""
    two = head(site, "Content-Length: 0") * 2
    answer = exchange(site, two + head(site, "Content-Length: 0", "Connection: close"))
    assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.fault_row("H7")
def test_a_head_that_never_ends_holds_nobody_up(site: Site) -> None:
    """Fifty connections that send a byte now and then: others are served."""
    slow = []
    try:
        for _ in range(50):
            made = socket.create_connection(host_and_port(site), timeout=20)
            made.sendall(b"POST /api/v1/ingest HTTP/1.1\r\nX")
            slow.append(made)
        run = site.init()
        for k in range(10):
            log_item(run, k)
        for made in slow:
            made.sendall(b"y")
        assert run.close(20).is_complete
    finally:
        for made in slow:
            made.close()
    site.find().check_whole(10)


@pytest.mark.fault_row("H2")
@pytest.mark.parametrize("seq", [0, 2, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_sequences_out_of_the_question_store_nothing(site: Site, seq: int) -> None:
    """0, a hole, the largest numbers: refused or told what is expected, and the lane goes on."""
    with site.init() as run:
        run.log("m", 1.0)
        run.flush(20)
        writer = run._run._front.writer
        body = encode_batch(Batch(writer.membership.run_uid, writer.writer_id, 7, seq))
        lines = (f"Content-Length: {len(body)}", f"Content-Type: {FRAMES_TYPE}")
        raw = exchange(site, head(site, *lines, "Connection: close", path="/ingest") + body)
        status, answer = raw[9:12], raw.partition(b"\r\n\r\n")[2]
        if status == b"200":
            (one,) = decode_reply(answer).replies
            assert one.status in (BatchStatus.GAP, BatchStatus.CONFLICT)
        else:
            assert status == b"400", raw[:300]
        run.log("m", 2.0)
    with site.reader() as reader:
        assert reader.series("run", "m").value.tolist() == [1.0, 2.0]
        assert reader.ledger("run").difference == 0
