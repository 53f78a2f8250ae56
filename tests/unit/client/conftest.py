"""Servers in memory, and a process that nothing was set up for."""

from __future__ import annotations

import os

import pytest

from metrana_async import current
from metrana_async.server.store.memory import MemoryStore
from metrana_async.testing import MemoryServer


@pytest.fixture
def alone(monkeypatch):
    """No setting, no job and no run of a test before."""
    for name in list(os.environ):
        if name.startswith("METRANA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("METRANA_ORCHESTRATION_ID", "")
    monkeypatch.setattr(current, "_current", None)


@pytest.fixture
def start_server():
    """Starts servers that live as long as the test."""
    servers = []

    def start(store: MemoryStore | None = None) -> MemoryServer:
        servers.append(MemoryServer(store))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server(start_server):
    return start_server()
