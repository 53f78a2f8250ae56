"""Logins of browsers: keys that work once, cookies that say whose they are."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from metrana_async.errors import AuthError
from metrana_async.server import browser
from metrana_async.server.browser import KEY_VALID_S, OWNER, SESSION_S, SHARED, Sessions

SECRET = b"s" * 32


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def request(sessions: Sessions, cookie: str):
    return make_mocked_request("GET", "/", headers={"Cookie": f"{sessions.cookie_name}={cookie}"})


def test_a_key_works_once(clock):
    """The first login gets an owner's cookie, the second is refused."""
    sessions = Sessions(SECRET, None, clock)
    key = sessions.new_key()
    cookie = sessions.log_in(key)
    assert sessions.role_of(request(sessions, cookie)) == OWNER
    with pytest.raises(AuthError):
        sessions.log_in(key)


def test_a_key_grows_old(clock):
    """After its time a key is worth nothing."""
    sessions = Sessions(SECRET, None, clock)
    key = sessions.new_key()
    clock.now += KEY_VALID_S
    with pytest.raises(AuthError):
        sessions.log_in(key)


def test_keys_are_bounded(clock):
    """Of many keys the oldest go; the newest works."""
    sessions = Sessions(SECRET, None, clock)
    first, *_, last = [sessions.new_key() for _ in range(200)]
    sessions.log_in(last)
    with pytest.raises(AuthError):
        sessions.log_in(first)


def test_the_shared_token_is_a_login_of_others(clock):
    """It makes a session that is not the owner's, and that ends when the token changes."""
    sessions = Sessions(SECRET, "a shared token", clock)
    cookie = sessions.log_in("a shared token")
    assert sessions.role_of(request(sessions, cookie)) == SHARED
    after = Sessions(SECRET, "another token", clock)
    assert after.role_of(request(after, cookie)) is None


def test_a_session_outlives_its_server_and_not_its_time(clock):
    """The same secret knows the cookie again; another secret, or a later day, does not."""
    cookie = (first := Sessions(SECRET, None, clock)).log_in(first.new_key())
    again = Sessions(SECRET, None, clock)
    assert again.role_of(request(again, cookie)) == OWNER
    other = Sessions(b"t" * 32, None, clock)
    assert other.role_of(request(other, cookie)) is None
    clock.now += SESSION_S
    assert again.role_of(request(again, cookie)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda c: "",
        lambda c: c[:-1],
        lambda c: c.replace("owner", "shared"),
        lambda c: c.replace(c.split(".")[1], "9" * 12),
        lambda c: "." + c,
        lambda c: c.split(".")[-1],
    ],
)
def test_a_cookie_that_was_changed_is_nobodys(clock, change):
    """Role, end and signature belong together."""
    sessions = Sessions(SECRET, None, clock)
    cookie = change(sessions.log_in(sessions.new_key()))
    assert sessions.role_of(request(sessions, cookie)) is None


def test_the_secret_is_private_and_kept(tmp_path):
    """One file, 0600, the same secret each time; a cut one is made anew."""
    secret = browser.load_secret(tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert browser.load_secret(tmp_path) == secret
    file.write_bytes(secret[:5])
    assert len(browser.load_secret(tmp_path)) == 32
    assert browser.load_secret(tmp_path / "nowhere") != browser.load_secret(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("method", "headers", "is_ours"),
    [
        ("GET", {}, True),
        ("POST", {}, False),
        ("POST", {"X-Metrana-Page": "1"}, True),
        ("DELETE", {}, False),
        ("PUT", {"Origin": "http://here:1"}, False),
        ("POST", {"X-Metrana-Page": "1", "Origin": "http://here:1"}, True),
        ("POST", {"X-Metrana-Page": "1", "Origin": "http://evil"}, False),
        ("POST", {"X-Metrana-Page": "1", "Origin": "null"}, False),
        ("GET", {"Origin": "http://here:2"}, False),
        ("GET", {"Origin": "http://out", "X-Forwarded-Host": "out"}, True),
    ],
)
def test_what_comes_from_our_page(method, headers, is_ours):
    """Another origin's name, or the lack of our header on a change, gives a request away."""
    made = make_mocked_request(method, "/", headers={"Host": "here:1", **headers})
    assert browser.is_from_our_page(made) is is_ours
