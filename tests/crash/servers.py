"""A server process on a store of its own, under whatever trouble a test asks for."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

import metrana_sync_shim as metrana
from metrana_async import locations
from metrana_async.errors import MetranaError
from metrana_async.wire.acks import IngestReply, decode_reply
from metrana_async.wire.messages import (
    API_PREFIX,
    FRAMES_TYPE,
    JSON_TYPE,
    HeartbeatReply,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    decode_error,
    decode_message,
    encode_message,
)
from tests.interop.conftest import ROOT
from tests.interop.life import Home

STORE_CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink")
"""What a store's files are written by."""

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: no faults at system calls"
)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(),
    reason="only root may mount a file system of its own, and not everywhere",
)


class Unanswered(Exception):
    """The server went away before it answered."""


class Server:
    """One store and the server processes that come and go on it.

    Has the methods of an `IngestService` that `TestWriter` calls, over HTTP.
    """

    def __init__(self, data_dir: Path) -> None:
        self.home = Home("proj", str(data_dir))
        self.data_dir = data_dir
        self.process: subprocess.Popen[str] | None = None
        self.pid = 0
        self.said = ""

    # --- life --------------------------------------------------------------------------------
    def start(self, *wrapper: str, options: Sequence[str] = ()) -> bool:
        """Start a server; False where it ended before it answered."""
        assert self.process is None
        words = [sys.executable, "-m", "metrana_async.server", "--data-dir", str(self.data_dir)]
        self.process = subprocess.Popen(
            [*wrapper, *words, *options], stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.said = self.process.stderr.readline()
        is_up = " on http" in self.said
        # Its own word: under a wrapper the process that was started is another.
        self.pid = int(self.said.split()[2]) if is_up else self.process.pid
        return is_up

    def start_with_fault(
        self, fault: str, trace: Path, *, endings: Sequence[str] = ("", "-wal")
    ) -> bool:
        """Start under strace: `fault` is what its `inject` is given; see `has_fired`.

        It is for calls on the files of the store with these endings.
        """
        names = fault.split(":", 1)[0]
        files = [f"-P{self.data_dir}/metrana.db{end}" for end in endings]
        return self.start(
            # Not with --seccomp-bpf, under which strace 6.1 loses the signals it should send.
            *("strace", "-f", "-qqq", "-o", str(trace), f"-etrace={names}", "-esignal=none"),
            *(f"-einject={fault}", *files),
        )

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 30) -> int:
        """Wait for its end; returns the exit status, `said` is what it said last."""
        process, self.process = self.process, None
        assert process is not None
        _, rest = process.communicate(timeout=timeout_s)
        self.said = rest
        return process.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """End it politely."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def clear(self) -> None:
        """End whatever is left, and its files beside the store."""
        if self.process is not None:
            # The server first: a wrapper that is killed leaves it alive.
            self.home.end_server()
            self.process.kill()
            self.process.communicate()
            self.process = None
        point = locations.meeting_point(self.data_dir)
        for path in (point.card, point.socket, point.lock, point.log):
            if path is not None:
                path.unlink(missing_ok=True)

    def reader(self) -> metrana.QueryClient:
        """A reader of what `TestWriter`s write."""
        return metrana.QueryClient(workspace="ws", project="proj", data_dir=str(self.data_dir))

    # --- requests ----------------------------------------------------------------------------
    def post(
        self, path: str, body: bytes, *, content_type: str = JSON_TYPE, timeout_s: float = 60
    ) -> bytes:
        """Ask the server.

        Raises:
            MetranaError: what it answered.
            Unanswered: it did not.
        """
        status, headers, answer = self.ask(path, body, content_type, timeout_s)
        if status != 200:
            error = decode_error(status, answer)
            error.status, error.headers = status, headers
            raise error
        return answer

    def ask(
        self, path: str, body: bytes, content_type: str, timeout_s: float
    ) -> tuple[int, dict[str, str], bytes]:
        try:
            card = self.home.card
            host, port = card["url"].removeprefix("http://").split(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
            headers = {"Authorization": f"Bearer {card['token']}", "Content-Type": content_type}
            with contextlib.closing(connection):
                connection.request("POST", API_PREFIX + path, body, headers)
                response = connection.getresponse()
                return response.status, dict(response.getheaders()), response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered(repr(error)) from error

    def open(self, request: OpenRequest) -> OpenReply:
        return decode_message(OpenReply, self.post("/writers/open", encode_message(request)))

    def ingest_many(self, bodies: Sequence[bytes]) -> list[IngestReply | MetranaError]:
        (body,) = bodies
        try:
            return [decode_reply(self.post("/ingest", body, content_type=FRAMES_TYPE))]
        except MetranaError as error:
            return [error]

    def leave(self, request: LeaveRequest) -> HeartbeatReply:
        return decode_message(HeartbeatReply, self.post("/writers/leave", encode_message(request)))

    def health(self) -> dict:
        return orjson.loads(self.post("/health", b""))


def has_fired(trace: Path, mark: str = "INJECTED") -> bool:
    """Whether strace has done what it was asked to."""
    return mark in trace.read_text("utf-8", "replace")
