"""The dashboard over HTTP: what anybody gets, what a login opens, and what no browser may do."""

from __future__ import annotations

import gzip
import http.client
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dashboard import vendor
from metrana_async.server.pages import POLICY
from tests.conformance.runner import ServerProcess

ROOT = Path(__file__).parent.parent.parent
WEB = ROOT / "metrana_async" / "server" / "web"
TOKEN = "a token that many people have"
PAGE = {"X-Metrana-Page": "1"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server whose token others have, too."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(TOKEN)
    process = ServerProcess(
        folder / "data", "sqlite", "--token-file", str(folder / "token"), "--idle-exit", "600"
    )
    yield process
    assert "Traceback" not in process.stop()


def ask(server, method, path, body=b"", **headers):
    """Status, headers in lower case, and body of a request over TCP."""
    connection = http.client.HTTPConnection(urlsplit(server.address.url).netloc, timeout=20)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def log_in(server, key, **headers):
    """The cookie of a login, or the refusal's status."""
    body = json.dumps({"key": key}).encode()
    status, found, _ = ask(server, "POST", "/login", body, **{**PAGE, **headers})
    return found["set-cookie"].split(";")[0] if status == 200 else status


def owner_key(server):
    bearer = f"Bearer {server.address.token}"
    status, _, body = ask(server, "POST", "/api/v1/browser/link", Authorization=bearer)
    assert status == 200
    return json.loads(body)["key"]


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("/", "./"),
        ("/p/x", "../"),
        ("/p/x/charts?q=1", "../../"),
        ("/p/x%2Fy/run/8f3a", "../../../"),
        ("/w/v/p/x/charts", "../../../../"),
    ],
)
def test_a_page_knows_its_root_and_its_policy(guarded, path, base):
    """Every page is one document under a strict policy, with the root told relatively."""
    status, headers, body = ask(guarded, "GET", path)
    assert status == 200
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert f'<base href="{base}">'.encode() in body
    assert not re.search(rb"<script(?![^>]*src=)|\son\w+=|style=", body)


def test_a_file_that_is_known_is_not_sent_again(guarded):
    """Files come compressed, with a tag; asked again with it there is only a 304."""
    status, headers, body = ask(guarded, "GET", "/web/main.js", Accept_Encoding="gzip")
    assert status == 200
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == (WEB / "main.js").read_bytes()
    assert headers["content-type"].startswith("text/javascript")
    tag = headers["etag"]
    status, headers, body = ask(guarded, "GET", "/web/main.js", If_None_Match=tag)
    assert (status, body) == (304, b"")
    assert ask(guarded, "GET", "/web/main.js")[2] == (WEB / "main.js").read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        "/web/../app.py",
        "/web/..%2fapp.py",
        "/web/%2e%2e/%2e%2e/errors.py",
        "/web//etc/passwd",
        "/web/vendor/../../auth.py",
        "/web/index.html",
        "/web/",
        "/p/" + "a/" * 40,
    ],
)
def test_nothing_beside_the_files_is_served(guarded, path):
    """No way leads out of the folder; a page that cannot be is not found."""
    status, _, body = ask(guarded, "GET", path)
    assert status in (400, 403, 404)
    assert b"import" not in body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/query/all_projects"),
        ("POST", "/api/v1/browser/link"),
        ("POST", "/api/v1/server/stop"),
        ("GET", "/api/v1/changes"),
        ("GET", "/api/v1/live"),
        ("POST", "/p/x/charts"),
        ("PUT", "/web/main.js"),
        ("POST", "/logout"),
        ("POST", "/login/x"),
    ],
)
def test_without_a_login_only_files_are_given(guarded, method, path):
    """Everything but the dashboard's own files asks who is there."""
    status, _, body = ask(guarded, method, path, b"{}", **PAGE)
    assert status in (401, 403)
    assert json.loads(body)["error"]["code"] == "auth"


def test_a_cookie_alone_opens_nothing_that_changes(guarded):
    """A logged-in browser that another page sends here is refused, with every verb."""
    cookie = log_in(guarded, owner_key(guarded))
    path = "/api/v1/query/all_projects"
    assert ask(guarded, "POST", path, b"{}", Cookie=cookie, **PAGE)[0] == 200
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert ask(guarded, method, path, b"{}", Cookie=cookie)[0] in (401, 403)
    evil = {**PAGE, "Origin": "http://evil.example"}
    assert ask(guarded, "POST", path, b"{}", Cookie=cookie, **evil)[0] in (401, 403)
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    live = "/api/v1/live"
    assert ask(guarded, "GET", live, Cookie=cookie, Origin="http://evil", **upgrade)[0] in (
        401,
        403,
    )
    assert log_in(guarded, owner_key(guarded), Origin="http://evil.example") in (401, 403)


def test_who_has_the_shared_token_reads_and_does_not_rule(guarded):
    """The shared token logs a browser in; it may not stop the server nor let others in as owner."""
    cookie = log_in(guarded, TOKEN)
    assert (
        ask(guarded, "POST", "/api/v1/query/all_projects", b"{}", Cookie=cookie, **PAGE)[0] == 200
    )
    for path in ("/api/v1/server/stop", "/api/v1/browser/link"):
        assert ask(guarded, "POST", path, b"", Cookie=cookie, **PAGE)[0] in (401, 403)
        bearer = f"Bearer {TOKEN}"
        assert ask(guarded, "POST", path, b"", Authorization=bearer)[0] in (401, 403)
    assert log_in(guarded, "no such token") in (401, 403)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"key": 7}', b'{"key": "\xff"}', b"\0" * 99])
def test_a_login_that_is_no_login_is_refused_in_words(guarded, body):
    """Whatever is sent to the login, the answer is an error that says what is wrong."""
    status, _, answer = ask(guarded, "POST", "/login", body, **PAGE)
    assert status in (400, 401, 403)
    assert json.loads(answer)["error"]["message"]


def test_first_paint_is_small():
    """What the first page loads is at most 60 KB compressed, and nothing is from elsewhere."""
    todo, seen = ["index.html"], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        text = (WEB / name).read_text("utf-8")
        folder = Path(name).parent
        found = re.findall(r'^(?:import|export) [^"]*"(\./[^"]+)"', text, re.MULTILINE)
        found += [] if folder != Path() else re.findall(r'(?:src|href)="web/([^"]+)"', text)
        todo += [(folder / target).as_posix() for target in found]
    assert {"charts.js", "vendor/preact.js", "vendor/uPlot.iife.min.js", "style.css"} <= seen
    assert "envs.js" not in seen
    sizes = {name: len(gzip.compress((WEB / name).read_bytes(), 9)) for name in seen}
    assert sum(sizes.values()) <= 60 * 1024, sizes


def test_what_is_vendored_is_what_the_lock_says():
    """Each file has its hash, none is there without one."""
    assert vendor.problems_of(json.loads(vendor.LOCK.read_text("utf-8"))) == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling")
def test_the_wheel_holds_the_dashboard(tmp_path):
    """Every file of the dashboard is in the wheel; what keeps it up is not."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path)]
    subprocess.run([*pip, *flags, str(ROOT)], check=True, timeout=50, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = {p.relative_to(ROOT).as_posix() for p in WEB.rglob("*") if p.is_file()}
    assert files
    assert files <= names
    assert not [name for name in names if name.startswith("dashboard")]


def test_no_file_of_the_dashboard_is_ignored():
    """What the wheel takes is what git has: none of the files is on the list of the ignored."""
    files = [str(path) for path in WEB.rglob("*") if path.is_file()]
    done = subprocess.run(
        ["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


# --- the command ---------------------------------------------------------------------------------
def ui(data_dir, *more, **environment):
    """What `metrana-async ui` says: stdout, stderr."""
    variables = {k: v for k, v in os.environ.items() if k not in ("SSH_CONNECTION", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "metrana_async.cli", "ui", str(data_dir), "--no-open", *more],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        cwd=ROOT,
        env={**variables, **environment},
    )
    return done.stdout, done.stderr


@pytest.fixture
def data_dir(tmp_path):
    yield tmp_path / "data"
    stop = [sys.executable, "-m", "metrana_async.server", "stop", "--data-dir", tmp_path / "data"]
    subprocess.run(stop, check=True, timeout=50, capture_output=True, cwd=ROOT)


def test_ui_starts_a_server_and_finds_it_again(data_dir):
    """The link is on stdout; a taken port is passed over; a second call finds the same server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first, told = ui(data_dir, "--port", str(port))
    match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#login=[\w-]{40,}\n", first)
    assert match
    assert int(match[1]) != port
    assert str(data_dir) in told
    second, told = ui(data_dir, SSH_CONNECTION="10.0.0.9 5123 10.0.0.5 22")
    assert second.split("#")[0] == first.split("#")[0]
    assert second != first
    assert f"ssh -L {match[1]}:127.0.0.1:{match[1]} 10.0.0.5" in told


def test_a_server_that_comes_back_is_where_it_was(data_dir):
    """After a stop the next server takes the same port: pages and bookmarks go on."""
    first, _ = ui(data_dir)
    stop = [sys.executable, "-m", "metrana_async.server", "stop", "--data-dir", data_dir]
    subprocess.run(stop, check=True, timeout=50, capture_output=True, cwd=ROOT)
    again, _ = ui(data_dir, "--port", "0")
    assert again.split("#")[0] == first.split("#")[0]
