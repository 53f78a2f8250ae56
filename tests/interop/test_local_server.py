"""The local server's whole life: releases that meet, stopping, being tidied away, being reached."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async import local, locations
from metrana_async.errors import AuthError, ConnectError, InitError
from metrana_async.transport.base import ServerAddress
from metrana_async.transport.http import HttpTransport
from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import eventually, home_in

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SERVER = [sys.executable, "-m", "metrana_async.server"]


def may(*words: str) -> bool:
    """Whether this process may make such namespaces."""
    command = ["unshare", *words, "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, check=False).returncode == 0


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data directory without a server."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with home_in(tmp_path) as home:
        yield home
        if metrana.is_initialized():
            metrana.close(5)


def server(home, *words, program=(), **environment):
    """A server in the foreground, and the line it says first."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.Popen(
        [*(program or SERVER), "--data-dir", home.data_dir, *words],
        stderr=subprocess.PIPE, text=True, env=variables,
    )  # fmt: skip
    return process, process.stderr.readline()


def end(process, number=signal.SIGTERM):
    """End a foreground server; what else it said."""
    process.send_signal(number)
    _, rest = process.communicate(timeout=30)
    return rest


def of_release(**change):
    """A server program that says it is of another release."""
    code = f"""
        import sys
        from metrana_async import versions
        from metrana_async.server import __main__, app
        if {change.get("protocol")!r}:
            app.PROTOCOL_VERSION = {change.get("protocol")!r}
        app.package_version = lambda: {change.get("version", "0.1.0")!r}
        sys.exit(__main__.main(sys.argv[2:]))
    """
    return [sys.executable, "-c", textwrap.dedent(code), "metrana_async.server"]


# --- releases that meet ---------------------------------------------------------------------------
@pytest.mark.fault_row("D10")
@pytest.mark.parametrize("release", [{"version": "0.0.9"}, {"protocol": -1}])
def test_a_server_of_an_older_release_hands_over(home, release):
    """It finishes and goes; the next init starts this release's, and a live run goes on there."""
    old, first = server(home, program=of_release(**release))
    assert " on http" in first
    if "version" in release:  # a writer of that release is at work
        transport = ServerAddress(home.card["url"], home.card["socket"], home.card["token"])
        run = home.init("old", transport=HttpTransport(transport))
        run.log("m", 1.0)
        run.flush(10)
    with home.init() as young:
        young.log("m", 1.0)
    assert old.wait(20) == 0
    assert old.stderr.read() == ""
    old.stderr.close()
    assert home.servers() == [home.card["pid"]] != [old.pid]
    if "version" in release:
        run.log("m", 2.0)
        assert run.close(20).is_complete
        assert home.points("m", run="old") == [(0, 1.0), (1, 2.0)]
    assert home.points("m") == [(0, 1.0)]


@pytest.mark.fault_row("D10")
def test_a_server_of_a_newer_protocol_is_left_alone(home):
    """The older client is told which release runs and what it can do; the server stays."""
    new, _ = server(home, program=of_release(protocol=99, version="7.1.0"))
    with pytest.raises(InitError, match=r"newer release \(7\.1\.0\).*speaks protocol 99") as told:
        home.init()
    assert "server stop" in told.value.hint
    assert new.poll() is None
    # Whatever its release, it can be stopped from here.
    assert asyncio.run(local.stop(home.data_dir))
    assert new.wait(20) == 0
    new.stderr.close()


@pytest.mark.fault_row("D10")
def test_a_newer_release_of_the_same_protocol_is_used(home):
    """Two environments on one machine do not throw each other's server out."""
    new, _ = server(home, program=of_release(version="7.1.0"))
    with home.init() as run:
        run.log("m", 1.0)
    assert new.poll() is None
    assert home.points("m") == [(0, 1.0)]
    assert end(new) == ""


# --- stopping -------------------------------------------------------------------------------------
def test_stop_ends_the_server_in_order(home):
    """`stop` waits until it is gone and everything is in place; a second one finds none."""
    with home.init() as run:
        run.log("m", [1.0, 2.0])
    stop = [*SERVER, "stop", "--data-dir", home.data_dir]
    done = subprocess.run(stop, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"metrana server: stopped, store {home.data_dir}\n"
    assert home.servers() == []
    assert not home.meeting.card.exists()
    assert not home.meeting.card_beside.exists()
    done = subprocess.run(stop, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, f"metrana server: none runs for {home.data_dir}\n")
    assert home.points("m") == [(0, 1.0), (1, 2.0)]


def test_a_run_that_goes_on_brings_a_stopped_server_back(home):
    """Stopped in the middle of a run: the run's next points start another server."""
    run = home.init()
    run.log("m", 1.0)
    run.flush(10)
    (before,) = home.servers()
    assert asyncio.run(local.stop(home.data_dir))
    run.log("m", 2.0)
    run.flush(20)
    assert home.servers() == [home.card["pid"]] != [before]
    assert run.close(10).is_complete
    assert home.points("m") == [(0, 1.0), (1, 2.0)]


# --- a server that dies ---------------------------------------------------------------------------
EIGHT = """
    run = metrana.init(run_name="run", orchestration_id="job")
    rank = int(os.environ["RANK"])
    run.log_distributed("loss", float(rank), step=rank)
    run.flush(30)
    print("up", flush=True)
    sys.stdin.readline()
    for k in range(1, 20):
        run.log_distributed("loss", float(rank), step=8 * k + rank)
    run.close(40)
"""


def test_eight_clients_of_a_killed_server_start_one(home):
    """SIGKILL under eight live writers: one server follows, every point is there once."""
    head = f"import os, sys\nimport metrana_sync_shim as metrana\nPROJECT = {home.project!r}\n"
    variables = {
        **os.environ, "METRANA_DATA_DIR": home.data_dir, "METRANA_PROJECT": home.project,
        "METRANA_QUIET": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(EIGHT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**variables, "RANK": str(rank)},
        )
        for rank in range(8)
    ]  # fmt: skip
    assert [p.stdout.readline() for p in programs] == ["up\n"] * 8
    (before,) = home.servers()
    os.kill(before, signal.SIGKILL)
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda p: (p.communicate("\n", timeout=50), p.returncode), programs))
    assert [(out, code) for (out, _), code in ends] == [("", 0)] * 8, ends
    assert home.servers() == [home.card["pid"]] != [before]
    assert home.meeting.log.read_text().count(" on http") == 2
    assert home.points("loss") == [(step, float(step % 8)) for step in range(160)]
    with home.reader() as reader:
        assert set(reader.merged("run", "loss").count.tolist()) == {1}


def test_a_server_that_is_held_down_is_not_started(home):
    """Who holds the start lock decides: the data waits, and is delivered when there is a server."""
    run = home.init()
    run.log("m", 1.0)
    run.flush(10)
    with home.held_down():
        home.end_server()
        run.log("m", 2.0)
        assert run.flush(2.5).spooled == 1
        assert home.servers() == []
    eventually(lambda: run.flush(10).spooled == 0, "what was spooled is stored")
    assert run.close(10).is_complete
    assert home.points("m") == [(0, 1.0), (1, 2.0)]


def test_a_server_with_an_address_is_nobodys_to_start(home):
    """A run that was given a URL waits for that server; it starts none of its own."""
    process, _ = server(home)
    run = home.init(ingestion_url=home.card["url"], api_key=home.card["token"])
    run.log("m", 1.0)
    run.flush(10)
    end(process, signal.SIGKILL)
    run.log("m", 2.0)
    assert run.flush(2.5).spooled == 1
    assert home.servers() == []
    info = run.close(0.2)
    assert (info.statistics.in_flight, info.statistics.spooled) == (0, 1)


def test_a_server_that_cannot_start_says_why_at_once(home):
    """Its log's last lines are in the error, long before the time is up."""
    Path(home.data_dir).mkdir(mode=0o700)
    (Path(home.data_dir) / "metrana.db").write_bytes(b"not a database" * 1000)
    begun_s = time.monotonic()
    with pytest.raises(InitError, match="cannot be opened"):
        home.init(init_timeout_secs=60)
    assert time.monotonic() - begun_s < 30


# --- being tidied away ----------------------------------------------------------------------------
def test_a_server_whose_files_were_tidied_away_is_found_again(home):
    """Card and socket removed from the temporary directory: the server puts them back."""
    home.init().close(10)
    (pid,) = home.servers()
    home.meeting.card.unlink()
    home.meeting.card_beside.unlink()
    home.meeting.socket.unlink()
    eventually(lambda: home.meeting.card.exists() and home.meeting.socket.exists(), "put back")
    with home.init("other") as run:
        run.log("m", 1.0)
    assert home.servers() == [pid]
    assert home.points("m", run="other") == [(0, 1.0)]


def test_a_socket_that_somebody_else_took_is_taken_back(home):
    """Another program listens under our socket's name: the server listens there again."""
    home.init().close(10)
    (pid,) = home.servers()
    home.meeting.socket.unlink()
    with socket.socket(socket.AF_UNIX) as thief:
        thief.bind(str(home.meeting.socket))
        thief.listen()
        taken = home.meeting.socket.stat().st_ino
        eventually(lambda: home.meeting.socket.stat().st_ino != taken, "taken back")
    with home.init("other") as run:
        run.log("m", 1.0)
    assert home.servers() == [pid]
    assert home.points("m", run="other") == [(0, 1.0)]


def test_a_server_whose_store_was_removed_ends(home):
    """`rm -rf` of the data directory: the server goes, and the next init begins anew."""
    with home.init() as run:
        run.log("m", 1.0)
    (pid,) = home.servers()
    shutil.rmtree(home.data_dir)
    eventually(lambda: pid not in home.servers(), "it ended")
    assert "was removed; this server ends" in home.meeting.log.read_text()
    with home.init() as run:
        run.log("m", 2.0)
    assert home.points("m") == [(0, 2.0)]


def test_the_log_of_a_server_stays_small(tmp_path):
    """A full log becomes its predecessor and a new one is begun; both together are bounded."""
    code = """
        import sys
        from pathlib import Path
        from metrana_async.server.log_file import LogFile
        log = LogFile(Path(sys.argv[1]), bytes_max=1000)
        log.adopt()
        for k in range(1000):
            print(f"line {k:5}", flush=True)
            log.keep_bounded()
    """
    path = tmp_path / "server.log"
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], check=True, cwd=ROOT, timeout=30
    )
    before = path.with_name("server.log.1").read_text()
    assert len(before) <= 1011
    assert (before + path.read_text()).splitlines()[-50:] == [
        f"line {k:5}" for k in range(950, 1000)
    ]


# --- where it runs --------------------------------------------------------------------------------
def test_a_cron_job_finds_the_server_of_a_login_session(home, tmp_path):
    """Another XDG_RUNTIME_DIR, another TMPDIR: one server all the same, by the card beside."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    log = 'metrana.init(run_name=os.environ["NAME"]).log("m", 1.0)'
    for number, more in enumerate(({"XDG_RUNTIME_DIR": str(runtime)}, {"TMPDIR": str(temporary)})):
        done = home.script(log, NAME=f"run-{number}", **more)
        assert (done.returncode, done.stderr) == (0, "")
    assert len(home.servers()) == 1
    assert home.points("m", run="run-0") == home.points("m", run="run-1") == [(0, 1.0)]


def test_long_paths(home, tmp_path):
    """A data directory and a temporary one too long for a socket's name are nothing special."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    log = 'metrana.init(run_name="run").log("m", 1.0)'
    with home_in(deep) as far:
        done = far.script(log, TMPDIR=str(deep), XDG_RUNTIME_DIR=str(deep))
        assert (done.returncode, done.stderr) == (0, "")
        assert far.points("m") == [(0, 1.0)]


@pytest.mark.parametrize("what", ["home", "state"])
def test_a_home_on_a_network_file_system_is_passed_over_and_said_once(
    tmp_path, monkeypatch, caplog, what
):
    """The store goes to a local directory and the log says where and why, once."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:40 / {tmp_path}/home rw shared:1 - nfs4 host:/x rw\n"
    )
    state = tmp_path / "home" / "me" / ".local" / "state"
    state.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(locations, "_MOUNTS", mounts)
    monkeypatch.setattr(locations.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("METRANA_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if what == "state":
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
    data = locations.data_dir()
    assert data == tmp_path / "tmp" / f"metrana-{os.getuid()}" / "data"
    for _ in range(2):
        local._say_once(locations.why_elsewhere())
    (record,) = caplog.records
    assert "network file system (nfs4)" in record.message
    assert str(data) in record.message
    assert locations.why_elsewhere("/elsewhere") is None


@pytest.mark.skipif(not may("-m"), reason="may not mount")
def test_a_home_that_is_mounted_read_only(tmp_path):
    """Also root cannot write there: the temporary directory takes the store."""
    (tmp_path / "home" / ".local").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    code = (
        "import metrana_sync_shim as m\n"
        "with m.init(project_name='p', run_name='r', quiet=True) as run: run.log('m', 1.0)\n"
        "import asyncio; from metrana_async import local, locations\n"
        "print(locations.data_dir()); asyncio.run(local.stop())"
    )
    inside = f"mount --bind -o ro {tmp_path}/home {tmp_path}/home && "
    inside += f'mount -o remount,bind,ro {tmp_path}/home && exec "$0" -c "$1"'
    variables = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("METRANA_", "XDG_")) and k not in JOB_VARIABLES
    }
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", inside, sys.executable, code],
        capture_output=True, text=True, timeout=60, check=False,
        env={**variables, "HOME": f"{tmp_path}/home", "TMPDIR": f"{tmp_path}/tmp",
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/tmp/metrana-{os.getuid()}/data\n"


@pytest.mark.skipif(not may("-p", "-f", "--mount-proc"), reason="may not make a pid namespace")
def test_containers_that_share_a_store_share_its_server(home):
    """Two pid namespaces on one directory: one server, pids that mean nothing mislead nobody."""
    log = 'metrana.init(run_name="run", orchestration_id="job").log_distributed("m", 1.0, step={})'
    with home.init("own", orchestration_id="job") as run:
        run.log("m", 1.0)
        head = "import os, sys\nimport metrana_sync_shim as metrana\n"
        variables = {
            **os.environ, "METRANA_DATA_DIR": home.data_dir, "METRANA_PROJECT": home.project,
            "METRANA_QUIET": "1", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        contained = ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c"]
        for step in range(2):
            done = subprocess.run(
                [*contained, head + log.format(step)], env=variables, capture_output=True,
                text=True, timeout=60, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
        assert len(home.servers()) == 1
        assert home.points("m") == [(0, 1.0), (1, 1.0)]
    stop = "import asyncio; from metrana_async import local; print(asyncio.run(local.stop()))"
    done = subprocess.run([*contained, stop], env=variables, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    eventually(lambda: not home.servers(), "it ended")


@pytest.mark.skipif(not may("-u"), reason="may not change the host's name")
def test_a_handle_does_not_follow_to_another_host(home):
    """Unpickled where the host has another name: refused, naming both hosts and the way out."""
    with home.init() as run:
        run.log("m", 1.0)
        pickled = json.dumps(__import__("pickle").dumps(run).hex())
        code = f"import pickle; pickle.loads(bytes.fromhex({pickled}))"
        inside = 'hostname elsewhere && exec "$0" -c "$1"'
        done = subprocess.run(
            ["unshare", "-u", "sh", "-c", inside, sys.executable, code],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 1
    assert f"local to host {socket.gethostname()!r}, this is 'elsewhere'" in done.stderr
    assert "ingestion_url=" in done.stderr


# --- being reached by URL -------------------------------------------------------------------------
async def ask(url, token, path):
    transport = HttpTransport(ServerAddress(url, token=token))
    try:
        return await transport.post(path, b"", timeout_s=10)
    finally:
        await transport.close()


def test_a_server_for_others_is_reached_by_url_and_token(home, tmp_path):
    """`--token-file` makes a token; with it one may log and read by URL, not stop the server."""
    file = tmp_path / "token"
    process, first = server(home, "--token-file", str(file), "--port", "0")
    token = file.read_text().strip()
    assert token not in first
    assert (file.stat().st_mode & 0o777, len(token)) == (0o600, 64)
    url = home.card["url"]
    with home.init(ingestion_url=url, api_key=token) as run:
        run.log("m", [1.0, 2.0])
    with metrana.QueryClient(project=home.project, url=url, token=token) as reader:
        assert reader.series("run", "m").value.tolist() == [1.0, 2.0]
    for wrong in ("x" * 64, None):
        with pytest.raises(AuthError):
            asyncio.run(ask(url, wrong, "/health"))
    with pytest.raises(AuthError, match="may stop it"):
        asyncio.run(ask(url, token, "/server/stop"))
    assert process.poll() is None
    assert token.encode() not in home.meeting.card.read_bytes()
    assert end(process) == ""
    # The next server on the same file takes the same token.
    process, _ = server(home, "--token-file", str(file))
    assert b"protocol" in asyncio.run(ask(home.card["url"], token, "/health"))
    assert end(process) == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host", "0.0.0.0"], "--allow-remote"),
        (["--host", "0.0.0.0", "--allow-remote"], "needs --token-file"),
        (["--token-file", "{short}"], "holds 5 characters, 16 are needed"),
        (["--token-file", "/nowhere/token"], "cannot be made"),
        (["--port", "1", "--host", "192.0.2.1", "--allow-remote", "--token-file", "{good}"],
         "cannot listen on 192.0.2.1:1"),
    ],
)  # fmt: skip
def test_what_would_open_a_server_by_mistake_is_refused(home, tmp_path, words, told):
    """An address for others needs leave and a token; the message says what is missing."""
    (tmp_path / "short").write_text("short")
    words = [w.format(short=tmp_path / "short", good=tmp_path / "good") for w in words]
    process, first = server(home, *words)
    assert first.startswith("metrana server: ")
    assert told in first
    assert process.wait(20) == 1
    process.stderr.close()


def test_a_port_that_is_taken_is_said(home):
    """The server ends with the reason; the store is free again."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        process, first = server(home, "--port", str(holder.getsockname()[1]))
        assert "cannot listen on 127.0.0.1" in first
        assert process.wait(20) == 1
        process.stderr.close()
    with home.init() as run:
        run.log("m", 1.0)
    assert home.points("m") == [(0, 1.0)]


# --- several hosts --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}, "SLURM_NNODES=2"),
        ({"SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "7"}, "SLURM_JOB_NUM_NODES=3"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "j"}, "WORLD_SIZE=8"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "LOCAL_SIZE=2"),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, "PMI_SIZE=4"),
    ],
)  # fmt: skip
def test_a_job_over_several_hosts_is_told_the_ways_out(home, variables, named):
    """No local server is started for it; the message names what gave it away and what to do."""
    done = home.script('metrana.init(run_name="run")', **variables)
    assert done.returncode == 1
    assert f"({named}" in done.stderr or f"{named})" in done.stderr
    assert "--allow-remote --token-file" in done.stderr
    assert "METRANA_INGESTION_URL" in done.stderr
    assert home.servers() == []


def test_nobody_at_a_url_is_a_connect_error():
    """A server that is not there is told as such, not as a hang."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ConnectError):
        asyncio.run(ask(url, "t" * 64, "/health"))


# --- tests and captured output --------------------------------------------------------------------
SUITE = '''
import pytest
import metrana_sync_shim as metrana
from metrana_async import local

@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A store of the test session's own; its server ends with it."""
    import asyncio
    path = str(tmp_path_factory.mktemp("metrana") / "data")
    yield path
    assert asyncio.run(local.stop(path))

@pytest.mark.parametrize("k", range(3))
def test_training_logs(data_dir, k):
    with metrana.init(project_name="p", run_name=f"run-{k}", data_dir=data_dir) as run:
        run.log("loss", [1.0] * (k + 1))
    with metrana.QueryClient(project="p", data_dir=data_dir) as reader:
        assert len(reader.series(f"run-{k}", "loss").step) == k + 1
'''


@pytest.mark.parametrize("capture", ["fd", "sys", "no"])
def test_in_somebody_elses_test_suite(tmp_path, capture):
    """The server holds no captured stream open: the suite ends at once, and leaves no server."""
    (tmp_path / "test_mine.py").write_text(SUITE)
    words = [sys.executable, "-m", "pytest", "-q", f"--capture={capture}", "-p", "no:randomly"]
    variables = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    done = subprocess.run(
        [*words, f"--basetemp={tmp_path}/t", "test_mine.py"], cwd=tmp_path, check=False,
        capture_output=True, text=True, timeout=50, env={**variables, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
