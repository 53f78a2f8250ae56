"""Starting this machine's server: once, whatever is left over, and again after it went."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import metrana_sync_shim as metrana
from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import eventually, home_in

pytestmark = pytest.mark.e2e

LOG_ONE = """
    with metrana.init(run_name="run", orchestration_id="job") as run:
        run.log_distributed("loss", float(os.environ["RANK"]), step=int(os.environ["RANK"]))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data directory without a server."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with home_in(tmp_path) as home:
        yield home
        if metrana.is_initialized():
            metrana.close(5)


def eight_log(home):
    """Eight processes at once, each with one point; all end well."""
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(home.script, LOG_ONE, RANK=str(rank)) for rank in range(8)]
        done = [job.result() for job in jobs]
    assert [(d.returncode, d.stderr) for d in done] == [(0, "")] * 8


def starts(home):
    """How many servers ever came up here, by their log."""
    return home.meeting.log.read_text().count(" on http")


def test_eight_at_once_start_one_server(home):
    """Eight first processes find each other: one server process, every point there."""
    eight_log(home)
    assert home.servers() == [home.card["pid"]]
    assert starts(home) == 1
    assert home.points("loss") == [(rank, float(rank)) for rank in range(8)]


def test_eight_at_once_after_a_killed_server(home):
    """A card and a socket file that a killed server left are in nobody's way."""
    eight_log(home)
    home.end_server(signal.SIGKILL)
    assert home.meeting.card.exists()
    assert home.meeting.socket.exists()
    eight_log(home)
    assert home.servers() == [home.card["pid"]]
    assert starts(home) == 2
    assert home.points("loss") == [(rank, float(rank)) for rank in range(8)]
    with home.reader() as reader:
        assert reader.ledger("run").visible == 8 + 8 - 8  # each step merged from two points


@pytest.mark.parametrize("card", [b"", b"{", b"[]", b'{"url": 7}', b'{"url": "x"}', b"\xff\x00"])
def test_a_spoilt_card_is_no_card(home, card):
    """Whatever lies in the card's place, a server is started and found."""
    home.meeting.directory.mkdir(mode=0o700, exist_ok=True)
    home.meeting.card.write_bytes(card)
    with home.init() as run:
        run.log("loss", 1.0)
    assert home.points("loss") == [(0, 1.0)]


def test_a_stranger_behind_the_card_is_not_believed(home):
    """A card that leads to something else than our server leads nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        home.meeting.directory.mkdir(mode=0o700, exist_ok=True)
        home.meeting.card.write_text(f'{{"url": "http://127.0.0.1:{port}", "token": "t"}}')
        with home.init() as run:
            run.log("loss", 1.0)
        assert home.points("loss") == [(0, 1.0)]


def test_an_idle_server_goes_and_the_next_init_starts_another(home):
    """The server exits when idle, takes its card along, and the next init starts a new one."""
    command = [sys.executable, "-m", "metrana_async.server", "--data-dir", home.data_dir]
    server = subprocess.Popen(
        [*command, "--idle-exit", "0.5"], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert " on http" in server.stderr.readline()
    with home.init() as run:
        run.log("loss", 1.0)
    assert server.wait(20) == 0
    assert server.stderr.read() == ""
    server.stderr.close()
    assert not home.meeting.card.exists()
    with home.init(resume_strategy="allow") as run:
        run.log("loss", 2.0)
    assert home.servers() == [home.card["pid"]] != [server.pid]
    assert home.points("loss") == [(0, 1.0), (1, 2.0)]


def test_the_servers_program_may_go_and_its_group_be_interrupted(home):
    """The server survives the program that started it, and a Ctrl-C of its terminal."""
    code = """if True:
        import metrana_sync_shim as metrana, sys
        metrana.init(project_name='life', run_name='run', quiet=True).log('loss', 1.0)
        metrana.flush()
        print('up', flush=True)
        sys.stdin.read()
    """
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "METRANA_DATA_DIR": home.data_dir, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        text=True,
    )
    assert program.stdout.readline() == "up\n"
    os.killpg(program.pid, signal.SIGINT)
    program.communicate(timeout=20)
    assert home.servers() == [home.card["pid"]]
    with home.reader() as reader:
        assert reader.run("run").state == "stopped"
    assert home.points("loss") == [(0, 1.0)]


def test_a_server_that_is_asked_to_stop_is_followed_by_another(home):
    """SIGTERM ends the server in order; eight that come meanwhile all get to log."""
    eight_log(home)
    (pid,) = home.servers()
    os.kill(pid, signal.SIGTERM)
    eight_log(home)
    eventually(lambda: len(home.servers()) == 1, "one server is left")
    assert home.points("loss") == [(rank, float(rank)) for rank in range(8)]
