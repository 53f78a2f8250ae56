"""Where leftovers go."""

from __future__ import annotations

import pytest

from metrana_async.leftovers import destination_of
from metrana_async.orchestration import process_identity
from metrana_async.settings import connection_defaults
from metrana_async.spool.layout import Meta
from metrana_async.wire.messages import OpenRequest, ProcessIdentity

HERE, ELSEWHERE = process_identity(), ProcessIdentity(host="another-host")


def meta(server: str, process: ProcessIdentity = HERE) -> Meta:
    request = OpenRequest("w", "p", "r", "o", "never", "b" * 32, process=process)
    return Meta(server, "offline", "a" * 32, request)


@pytest.mark.parametrize(
    ("left", "asked", "variable", "expected"),
    [
        (meta("http://own"), "http://asked", "http://env", ("http://asked", None)),
        (meta("http://own"), None, "http://env", ("http://own", None)),
        (meta("local /d"), None, "http://env", ("http://env", None)),
        (meta("local /d"), None, None, (None, "/d")),
        (meta("local /d", ELSEWHERE), None, None, (None, None)),
        (meta("transport 1"), None, "http://env", ("http://env", None)),
        (None, None, None, (None, None)),
        (None, None, "http://env", ("http://env", None)),
    ],
)
def test_leftovers_go_where_they_were_meant(monkeypatch, left, asked, variable, expected):
    """Argument, then the run's own server, then the environment, then this machine's."""
    for name in ("METRANA_INGESTION_URL", "METRANA_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv("METRANA_INGESTION_URL", variable)
    assert destination_of(left, connection_defaults(asked, None, None)) == expected


def test_a_store_that_is_named_wins_over_a_servers_address(monkeypatch):
    """data_dir= names the local server: nothing goes to the address in the environment."""
    monkeypatch.setenv("METRANA_INGESTION_URL", "http://env")
    server = connection_defaults(None, None, "/mine")
    assert destination_of(meta("local /d"), server) == (None, "/mine")
