"""Servers that accept and never answer, or are stopped for a while: waits end in time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import InitError, UnavailableError, WaitTimeoutError
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport
from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import eventually, home_in

pytestmark = pytest.mark.e2e

LATE_S = 0.5
"""What a close may take beyond its time-out, on an idle machine."""
SCHEDULING_S = 0.5
"""What a busy test machine may add."""


class Deaf:
    """Listens, accepts, reads, and says nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for taken in self._taken:
            taken.close()


@pytest.fixture
def deaf():
    """A server that never answers."""
    server = Deaf()
    yield server
    server.close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A real server of its own, to be stopped and continued; its pid is on the card."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with home_in(tmp_path) as home:
        command = [sys.executable, "-m", "metrana_async.server", "--data-dir", home.data_dir]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert " on http" in server.stderr.readline()
        yield home
        os.kill(server.pid, signal.SIGCONT)
        if metrana.is_initialized():
            metrana.close(5)
        server.terminate()
        assert server.wait(20) == 0
        assert server.stderr.read() == ""
        server.stderr.close()


def halt(home):
    os.kill(home.card["pid"], signal.SIGSTOP)


def go_on(home):
    os.kill(home.card["pid"], signal.SIGCONT)


def seconds(call):
    """How long a call takes, and what it gives."""
    begun_s = time.monotonic()
    try:
        result = call()
    except metrana.MetranaError as error:
        result = error
    return time.monotonic() - begun_s, result


@pytest.mark.parametrize("timeout_s", [0.3, 1.5])
def test_init_ends_in_time_without_an_answer(deaf, timeout_s):
    """`init` gives up after its time-out and says where nobody answered."""
    took_s, error = seconds(
        lambda: metrana.init(
            project_name="p", ingestion_url=deaf.url, init_timeout_secs=timeout_s, quiet=True
        )
    )
    assert isinstance(error, InitError)
    assert deaf.url in str(error)
    assert took_s < timeout_s + LATE_S + SCHEDULING_S


class Switch:
    """A transport that goes to a real server first, and to a deaf one from `turn` on."""

    def __init__(self, good, bad) -> None:
        self._now, self._both = good, (good, bad)

    def turn(self) -> None:
        self._now = self._both[1]

    async def post(self, path, body, **more):
        return await self._now.post(path, body, **more)

    async def close(self) -> None:
        for transport in self._both:
            await transport.close()


@pytest.mark.fault_row("C3")
@pytest.mark.parametrize("how", ["close", "shutdown_logger"])
@pytest.mark.parametrize("timeout_s", [0.0, 0.2, 2.0])
def test_close_against_a_deaf_server(home, deaf, timeout_s, how):
    """Close returns within its time and half a second, and says exactly what was lost."""
    card = home.card
    good = HttpTransport(ServerAddress(card["url"], card["socket"], card["token"]))
    switch = Switch(good, HttpTransport(ServerAddress(deaf.url)))
    run = metrana.init(project_name=home.project, run_name="run", transport=switch, quiet=True)
    run.log("m", [1.0, 2.0])
    run.flush(10)
    switch.turn()
    run.log("m", [3.0, 4.0, 5.0])
    run.log_distributed("d", 1.0, step=0)
    took_s, info = seconds(lambda: getattr(run, how)(timeout_s))
    assert took_s < timeout_s + LATE_S + SCHEDULING_S
    assert not info.is_complete
    assert dict(info.statistics.lost) == {"closed": 4}
    assert info.statistics.committed == 2
    assert info.statistics.is_balanced
    with pytest.raises(metrana.RunClosedError):
        run.log("m", 1.0)


@pytest.mark.parametrize("timeout_s", [0.0, 1.0])
def test_close_against_a_halted_server(home, timeout_s):
    """The same with a real server under SIGSTOP: what is not stored stays on the disk."""
    run = home.init()
    run.log("m", 1.0)
    run.flush(10)
    halt(home)
    run.log("m", 2.0)
    took_s, info = seconds(lambda: run.close(timeout_s))
    assert took_s < timeout_s + LATE_S + SCHEDULING_S
    assert (info.statistics.spooled, dict(info.statistics.lost)) == (1, {})
    assert not info.is_complete
    go_on(home)
    (report,) = metrana.replay_spool(data_dir=home.data_dir)
    assert report.state == "delivered"
    assert home.points("m") == [(0, 1.0), (1, 2.0)]


def test_a_close_that_lost_raises_under_all_or_crash(home):
    """Under `all_or_crash` the loss is an error, in the same time; without a spool there is one."""
    run = home.init(delivery_policy="all_or_crash", disk=None)
    halt(home)
    run.log("m", 2.0)
    took_s, error = seconds(lambda: run.close(0.3))
    assert isinstance(error, metrana.DataLossError)
    assert error.lost_points == {"closed": 1}
    assert took_s < 0.3 + LATE_S + SCHEDULING_S


def test_a_close_that_keeps_on_disk_is_no_loss(home):
    """Under `all_or_crash` what is kept on the disk is not lost: no error, and it says so."""
    run = home.init(delivery_policy="all_or_crash")
    halt(home)
    run.log("m", 2.0)
    info = run.close(0.3)
    assert (info.statistics.spooled, info.is_complete) == (1, False)
    go_on(home)


def test_a_flush_is_content_with_the_disk_at_its_deadline(home):
    """The server is halted: flush says `spooled`; once it goes on, everything is stored once."""
    run = home.init()
    run.log("m", 0.0)
    run.flush(10)
    for k in range(1, 4):
        halt(home)
        run.log("m", float(k))
        took_s, statistics = seconds(lambda: run.flush(1.0))
        assert (statistics.spooled, statistics.in_flight) == (1, 0)
        assert took_s < 1.0 + LATE_S + SCHEDULING_S
        go_on(home)
        eventually(lambda: run.flush(20).committed == run.get_metrics().accepted, "it is stored")
    assert run.close(10).is_complete
    assert home.points("m") == [(k, float(k)) for k in range(4)]


def test_a_flush_that_ran_out_of_time_lost_nothing(home):
    """WaitTimeoutError while the server is halted; once it goes on, everything is there once."""
    run = home.init(disk=None)
    run.log("m", 0.0)
    run.flush(10)
    for k in range(1, 4):
        halt(home)
        run.log("m", float(k))
        took_s, error = seconds(lambda: run.flush(0.3))
        assert isinstance(error, WaitTimeoutError)
        assert isinstance(error, TimeoutError)
        assert "1 points are not stored" in str(error)
        assert took_s < 0.3 + LATE_S + SCHEDULING_S
        assert run.get_metrics().in_flight == 1
        go_on(home)
        assert run.flush(20).committed == k + 1
    assert run.close(10).is_complete
    assert home.points("m") == [(k, float(k)) for k in range(4)]


def test_reading_from_a_halted_server_ends_in_time(home):
    """A reader gives up after its time-out, and reads on when the server goes on."""
    home.init().close(10)
    with metrana.QueryClient(
        project=home.project, data_dir=home.data_dir, timeout_secs=1.0
    ) as reader:
        reader.runs()
        halt(home)
        took_s, error = seconds(reader.runs)
        assert isinstance(error, metrana.MetranaError)
        assert took_s < 1.0 + LATE_S + SCHEDULING_S
        go_on(home)
        assert [run.name for run in reader.runs()] == ["run"]


def test_the_end_of_a_program_against_a_deaf_server(home):
    """Without close the exit budget ends it, the exit code stays, what is kept is told."""
    halted = f"os.kill({home.card['pid']}, __import__('signal').SIGSTOP)"
    begun_s = time.monotonic()
    done = home.script(
        "from metrana_async.engine import lifecycle; lifecycle.EXIT_BUDGET_S = 1.0\n"
        f"run = metrana.init(run_name='run')\nrun.log('m', 1.0)\nrun.flush()\n{halted}\n"
        "run.log('m', 2.0)\nsys.exit(3)"
    )
    took_s = time.monotonic() - begun_s
    go_on(home)
    assert done.returncode == 3
    assert "1 points are kept on this machine" in done.stderr
    assert took_s < 10
    (report,) = metrana.replay_spool(data_dir=home.data_dir)
    assert report.state == "delivered"
    assert home.points("m") == [(0, 1.0), (1, 2.0)]


def test_sigterm_against_a_deaf_server(home):
    """SIGTERM ends a program within its budget although nobody answers."""
    halted = f"os.kill({home.card['pid']}, signal.SIGSTOP)"
    begun_s = time.monotonic()
    done = home.script(
        f"import signal, time\nrun = metrana.init(run_name='run')\n{halted}\n"
        "run.log('m', 2.0)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)"
    )
    took_s = time.monotonic() - begun_s
    go_on(home)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert took_s < 8


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.2])
def test_a_request_without_time_left_ends_at_once(deaf, timeout_s):
    """A time-out of 0 is no time, not all the time."""

    async def ask():
        transport = HttpTransport(ServerAddress(deaf.url))
        try:
            with pytest.raises(UnavailableError):
                await transport.post("/health", b"", timeout_s=timeout_s)
        finally:
            await transport.close()

    took_s, _ = seconds(lambda: asyncio.run(asyncio.wait_for(ask(), 10)))
    assert took_s < 0.2 + LATE_S + SCHEDULING_S


@pytest.mark.parametrize("what", ["init", "read"])
def test_first_contact_with_a_halted_local_server_ends_in_time(home, what):
    """The card is there, its server is halted: who comes first waits no longer than told."""
    home.init().close(10)
    halt(home)
    if what == "init":
        took_s, error = seconds(lambda: home.init("other", init_timeout_secs=1.0))
        assert isinstance(error, InitError)
    else:
        with metrana.QueryClient("p", data_dir=home.data_dir, timeout_secs=1.0) as reader:
            took_s, error = seconds(reader.runs)
        assert isinstance(error, metrana.MetranaError)
    assert took_s < 1.0 + LATE_S + SCHEDULING_S
    go_on(home)
    with home.init("other") as run:
        run.log("m", 1.0)
    assert home.points("m", run="other") == [(0, 1.0)]
    assert home.servers() == [home.card["pid"]]
