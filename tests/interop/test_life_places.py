"""Where it runs: from a wheel alone, behind a proxy, without a home, beside other users' stores."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest

from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import Home, home_in

pytestmark = pytest.mark.e2e

LOG = """
import metrana_sync_shim as metrana
with metrana.init(project_name="life", run_name="run", quiet=True) as run:
    run.log("m", [1.0, 2.0])
with metrana.QueryClient(project="life") as reader:
    print(reader.series("run", "m").value.tolist())
"""
LOGGED = "[1.0, 2.0]\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data directory without a server."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with home_in(tmp_path) as home:
        yield home


def run(code, *, without=(), where=None, **environment):
    """A program in an environment of its own."""
    variables = {
        k: v
        for k, v in os.environ.items()
        if k not in JOB_VARIABLES and k not in without and not k.startswith("METRANA_")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=where,
        env={**variables, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling")
def test_the_wheel_alone_is_enough(home, tmp_path):
    """Built, unzipped and used from an empty directory: the first example runs, server included."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path)]
    subprocess.run([*pip, *flags, str(ROOT)], check=True, timeout=120, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "unzipped")
    assert not [n for n in names if n.startswith(("tests", "docs", "benchmarks"))]
    assert "metrana_async/server/__main__.py" in names
    empty = tmp_path / "empty"
    empty.mkdir()
    where = "import metrana_async; print(metrana_async.__file__)\n"
    code = where + (ROOT / "docs" / "snippets" / "first_run.py").read_text()
    done = run(
        code,
        where=empty,
        PYTHONPATH=str(tmp_path / "unzipped"),
        METRANA_DATA_DIR=home.data_dir,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(str(tmp_path / "unzipped"))
    assert done.stdout.splitlines()[1].startswith("[997 998 999]")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["metrana"]
    for pid in home.servers():
        with open(f"/proc/{pid}/environ", "rb") as environment:
            assert str(tmp_path / "unzipped").encode() in environment.read()


PROXY = "http://127.0.0.1:9"  # discard: nobody listens


@pytest.mark.fault_row("C21")
@pytest.mark.parametrize("by", ["socket", "tcp"])
def test_proxies_of_the_environment_are_not_for_the_local_server(home, by):
    """http_proxy and its kin lead nowhere, and nobody asks them."""
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    proxies = dict.fromkeys(names, PROXY)
    more = {}
    if by == "tcp":
        home.init().close(10)
        more = {"METRANA_INGESTION_URL": home.card["url"], "METRANA_API_KEY": home.card["token"]}
    code = LOG.replace('"run"', '"other"') if by == "tcp" else LOG
    done = run(code, without=("no_proxy", "NO_PROXY"), METRANA_DATA_DIR=home.data_dir,
               **proxies, **more)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, LOGGED, "")


@pytest.mark.parametrize("has_home", [True, False])
def test_an_unset_home_and_a_writable_one(tmp_path, has_home):
    """The store goes to the user's state directory, or under the temporary one without a home."""
    where = {"HOME": str(tmp_path)} if has_home else {}
    user = f"metrana-{os.getuid()}"
    data = tmp_path / ".local" / "state" / "metrana" if has_home else tmp_path / user / "data"
    done = run(
        LOG, without=("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"), TMPDIR=str(tmp_path), **where
    )
    Home("life", str(data)).end_server()
    assert (done.returncode, done.stdout, done.stderr) == (0, LOGGED, "")
    assert list(data.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_home(tmp_path):
    """A home that cannot be written is passed over."""
    home_dir = tmp_path / "home"
    home_dir.mkdir()
    home_dir.chmod(0o500)
    done = run(
        LOG,
        without=("XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
        TMPDIR=str(tmp_path),
        HOME=str(home_dir),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, LOGGED, "")


def test_two_stores_of_one_user_do_not_meet(tmp_path):
    """Two data directories have two servers, and neither sees the other's runs."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with home_in(tmp_path / "a") as a, home_in(tmp_path / "b") as b:
        for home in (a, b):
            done = run(LOG, METRANA_DATA_DIR=home.data_dir)
            assert (done.returncode, done.stdout, done.stderr) == (0, LOGGED, "")
        assert a.card["pid"] != b.card["pid"]
        assert a.card["url"] != b.card["url"]
        assert len(a.servers()) == len(b.servers()) == 1


def test_one_store_by_two_names(tmp_path):
    """A link and a relative spelling of one directory lead to one server."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with home_in(tmp_path / "a") as home:
        assert run(LOG, METRANA_DATA_DIR=home.data_dir).stdout == LOGGED
        pid = home.card["pid"]
        for name in (str(tmp_path / "link" / "data"), "data"):
            code = LOG.replace('"run"', repr("run-" + name.replace("/", "_")))
            done = run(code, where=str(tmp_path / "a"), METRANA_DATA_DIR=name)
            assert (done.returncode, done.stdout, done.stderr) == (0, LOGGED, "")
        assert home.card["pid"] == pid
        assert home.servers() == [pid]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_kept_out(home):
    """Another user's `init` on this user's directory is refused in words; ours is untouched."""
    assert run(LOG, METRANA_DATA_DIR=home.data_dir).stdout == LOGGED
    # What is imported on use is imported before: the other user cannot read it here.
    other = """
import os, metrana_sync_shim as metrana
metrana.init(project_name="life", run_name="run", quiet=True, init_mode="disabled").close()
import metrana_async.local_transport
from metrana_async.engine.loop_thread import _IMPORTED_AHEAD
for name in _IMPORTED_AHEAD: __import__(name)
os.setgid(65534); os.setuid(65534)
"""
    done = run(other + LOG, METRANA_DATA_DIR=home.data_dir, METRANA_INIT_TIMEOUT_SECS="5")
    assert done.returncode == 1
    assert "InitError" in done.stderr
    assert f"cannot use directory {home.data_dir}" in done.stderr or "belongs to" in done.stderr
    assert home.points("m") == [(0, 1.0), (1, 2.0)]


def test_a_directory_others_may_write_is_refused(home, tmp_path):
    """A store that others could tamper with is not used; the message says what to do."""
    (tmp_path / "data").mkdir(mode=0o777)
    (tmp_path / "data").chmod(0o777)
    done = run(LOG, METRANA_DATA_DIR=home.data_dir)
    assert done.returncode == 1
    assert "can be written by others; make it private (0700)" in done.stderr


@pytest.mark.parametrize("blocked", ["file", "parent"])
def test_a_data_directory_that_cannot_be(home, tmp_path, blocked):
    """A file in its place, or in its parent's: InitError names the path."""
    place = tmp_path / "data"
    place.write_text("")
    name = str(place if blocked == "file" else place / "deeper")
    done = run(LOG, METRANA_DATA_DIR=name)
    assert done.returncode == 1
    assert "InitError: cannot use directory " + name in done.stderr
