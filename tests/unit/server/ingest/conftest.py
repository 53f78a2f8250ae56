"""A service on a memory store, a clock that is moved by hand, and writers for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrana_async.server.ingest.service import IngestService
from metrana_async.server.store.base import PointStore
from metrana_async.server.store.memory import MemoryStore
from metrana_async.server.store.sqlite.store import SqliteStore
from tests.unit.server.ingest.helpers import Clock, MakeWriter, TestWriter


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def service(store: MemoryStore, clock: Clock) -> IngestService:
    return IngestService(store, clock=clock)


@pytest.fixture
def make_writer(service: IngestService) -> MakeWriter:
    numbers = itertools.count(1)

    def make(**options) -> TestWriter:
        writer = TestWriter(options.pop("service", service), next(numbers), **options)
        writer.open()
        return writer

    return make


class Kept:
    """A service on a store that can be stopped and started; memory keeps its store meanwhile."""

    def __init__(self, kind: str, folder: Path, clock: Clock) -> None:
        self._kind = kind
        self._folder = folder
        self._clock = clock
        self.store: PointStore = MemoryStore()
        self.start()

    def start(self) -> None:
        if self._kind == "sqlite":
            self.store = SqliteStore(self._folder)
        self.service = IngestService(self.store, clock=self._clock)

    def restart(self, *writers: TestWriter) -> None:
        """Stop the server, start it again, and let these writers talk to the new one."""
        self.store.close()
        self.start()
        for writer in writers:
            writer.service = self.service

    def writer(self, number: int, **options) -> TestWriter:
        """A writer that is not opened yet."""
        return TestWriter(self.service, number, **options)


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Kept]:
    """A server on each kind of store."""
    made = Kept(request.param, tmp_path / "store", clock)
    yield made
    made.store.close()
