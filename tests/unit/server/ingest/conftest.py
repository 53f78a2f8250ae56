"""A service on a memory store, a clock that is moved by hand, and writers for it."""

from __future__ import annotations

import itertools

import pytest

from metrana_async.server.ingest.service import IngestService
from metrana_async.server.store.memory import MemoryStore
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
