"""Behind a proxy that puts a prefix before everything and lets no WebSocket through."""

from __future__ import annotations

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.browser import sample

expect = pytest.importorskip(
    "playwright.sync_api", reason="the tests in a browser need playwright"
).expect
PREFIX = "/user/x/proxy/7007"
HOPS = ("connection", "transfer-encoding", "keep-alive", "host", "content-length")


class Proxy(BaseHTTPRequestHandler):
    """Strips the prefix; the rest goes to the server as it is, upgrades excepted."""

    target = ""
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        if not self.path.startswith(PREFIX + "/") or "Upgrade" in self.headers:
            self.send_error(502)
            return
        upstream = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=30)
        # A page that is left hangs up in the middle of an answer.
        with contextlib.closing(upstream), contextlib.suppress(ConnectionError):
            self.pass_on(upstream)

    def pass_on(self, upstream: http.client.HTTPConnection) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOPS}
        headers["X-Forwarded-Host"] = self.headers["Host"]
        upstream.request(self.command, self.path[len(PREFIX) :], body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOPS:
                self.send_header(name, value)
        if answer.status != 304:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = forward

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def proxy(site):
    Proxy.target = site.url
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_dashboard_lives_under_a_prefix_without_a_socket(chromium, site, proxy):
    """Pages, links, login and news work there; no request leaves the prefix."""
    context = chromium.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.set_default_timeout(30_000)
    outside = []
    page.on(
        "request",
        lambda r: (
            r.url.startswith((proxy + PREFIX + "/", "blob:", "data:")) or outside.append(r.url)
        ),
    )
    link = urlsplit(site.link(f"/p/{sample.PROJECT}/charts"))
    page.goto(f"{proxy}{PREFIX}{link.path}#{link.fragment}")
    page.get_by_role("article", name="rollout/ep_len_mean").locator("canvas").first.wait_for()
    cookies = context.cookies()
    assert [cookie["path"] for cookie in cookies] == [PREFIX]
    assert all(cookie["httpOnly"] and cookie["sameSite"] == "Strict" for cookie in cookies)
    page.get_by_role("link", name="Environments").click()
    page.get_by_text(sample.WORST_ENV).first.wait_for()
    assert page.url.startswith(f"{proxy}{PREFIX}/p/")
    page.reload()
    page.get_by_text(sample.WORST_ENV).first.wait_for()
    page.get_by_role("link", name="Charts").click()
    page.get_by_role("article", name="rollout/ep_len_mean").locator("canvas").first.wait_for()
    page.get_by_text("live (5 s)").wait_for()
    site.live.log("train/kl_by_poll", 0.5, step=7)
    site.live.flush()
    page.get_by_role("button", name="train 6").wait_for()
    assert outside == []
    context.close()
