"""A real server with a day's work on it, and a real browser that must not complain.

`make browser` runs these, `make test` does not yet: one or two of them (the tooltip, the zoom that
is opened by its address) fail in most whole runs, also alone on the machine. The zoom passed when
run singly. Whether the pages or the tests are at fault is not known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import metrana_sync_shim as metrana
from tests.browser import sample

ROOT = Path(__file__).parent.parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 20_000

if os.environ.get("METRANA_TEST_BROWSER") != "1":
    collect_ignore_glob = ["test_*.py"]


@dataclass
class Site:
    """A server, what was logged to it, and the way in."""

    data_dir: str
    live: metrana.Run

    def link(self, path: str = "") -> str:
        """A link that logs one browser in, to a page."""
        done = subprocess.run(
            [sys.executable, "-m", "metrana_async.cli", "ui", self.data_dir, "--no-open"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=ROOT,
        )
        url, key = done.stdout.strip().split("/#")
        return f"{url}{path or '/'}#{key}"

    @property
    def url(self) -> str:
        """The server's address."""
        return str(json.loads((Path(self.data_dir) / "server.json").read_bytes())["url"])


def chromium_path() -> str | None:
    """Where a browser is, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[Site]:
    """A server with the sample on it, and a run that goes on."""
    data_dir = str(tmp_path_factory.mktemp("dashboard") / "data")
    live = sample.log_sample(data_dir)
    yield Site(data_dir, live)
    live.close()
    # A process of its own: the browser's driver keeps an event loop in this thread.
    stop = [sys.executable, "-m", "metrana_async.server", "stop", "--data-dir", data_dir]
    subprocess.run(stop, check=True, timeout=60, capture_output=True, cwd=ROOT)


@pytest.fixture(scope="module")  # its event loop must be gone before other modules' tests
def chromium() -> Iterator[Any]:
    """A browser, or a skip that says what is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the tests in a browser need playwright"
    )
    path = chromium_path()
    if path is None:
        pytest.skip("the tests in a browser need chromium (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        # Root in a container has no sandbox; the pages are ours.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Watched:
    """A page, and everything it should not have done."""

    def __init__(self, context: Any, origin: str) -> None:
        self.faults: list[str] = []
        self.policies: list[str | None] = []
        self.bytes_count = 0
        self._origin = origin
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self._origin, "data:", "blob:")):
            self.faults.append(f"outside: {request.url}")

    def _on_response(self, response: Any) -> None:
        if response.request.resource_type == "document":
            self.policies.append(response.headers.get("content-security-policy"))


@pytest.fixture
def watched(chromium, site) -> Iterator[Watched]:
    """A page that is logged in; at the end it must have been quiet, at home and under a policy."""
    context = chromium.new_context(viewport={"width": 1280, "height": 860})
    made = Watched(context, site.url)
    made.page.goto(site.link(f"/p/{sample.PROJECT}/charts"))
    made.page.get_by_role("button", name="Copy link").wait_for()
    yield made
    faults, policies = made.faults, made.policies
    context.close()
    assert faults == []
    assert policies
    assert all(policy and "default-src 'none'" in policy for policy in policies)
