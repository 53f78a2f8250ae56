"""A memory store filled by hand, as ingestion would fill it, and a way to its endpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrana_async.server.http.endpoint import answer
from metrana_async.server.http.query import query_endpoints
from metrana_async.server.query.service import QueryService
from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    AttributeRow,
    Commit,
    CutRow,
    RunRow,
    SeriesRow,
    WriterRow,
)
from metrana_async.server.store.memory import MemoryStore
from metrana_async.wire.messages import decode_error
from metrana_async.wire.model import Family, Ordering, SeriesDef, StepMode


def column(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class StoredRun:
    """One run in a memory store; each method is one commit."""

    def __init__(
        self, name: str = "run", *, store: MemoryStore | None = None, **facts: Any
    ) -> None:
        self.store = MemoryStore() if store is None else store
        self.run_no, _, _ = self.store.next_numbers()
        row = {
            "run_uid": f"{self.run_no:032x}",
            "workspace": "default",
            "project": "proj",
            "created_ms": 1000 + self.run_no,
            "state": "running",
            "state_ms": 1000,
            "orchestration_ids": ["job"],
            **facts,
        }
        self.row = RunRow(run_no=self.run_no, name=name, **row)
        self.store.commit(Commit(runs=[self.row]))
        self.envs: dict[str, int] = {}

    def writer(self, writer_id: str) -> int:
        """A new writer; its number."""
        _, writer_no, _ = self.store.next_numbers()
        row = WriterRow(writer_no, self.run_no, writer_id, writer_no, None, {}, True, 1, 1)
        self.store.commit(Commit(writers=[row]))
        return writer_no

    def series(self, metric: str, family: Family = Family.STANDARD, **pins: Any) -> int:
        """A new series; its number."""
        _, _, series_no = self.store.next_numbers()
        scales = {Family.STANDARD: "ML_STEP", Family.EPISODE: "EPISODE"}
        definition = SeriesDef(
            family,
            metric,
            pins.get("scale", scales.get(family, "ENVIRONMENT_STEP")),
            tuple(sorted(pins.get("labels", {}).items())),
            pins.get("ordering", Ordering.ORDERED),
            pins.get("episodic"),
        )
        self.store.commit(Commit(series=[SeriesRow(series_no, self.run_no, definition)]))
        return series_no

    def env(self, name: str) -> int:
        """An environment's number, new or known."""
        if name not in self.envs:
            self.envs[name] = len(self.envs)
            self.store.commit(Commit(envs=[(self.run_no, self.envs[name], name)]))
        return self.envs[name]

    def points(self, series_no: int, writer_no: int, rows: list[tuple], dtype=np.float32) -> None:
        """STANDARD rows: (step, value[, time_ms])."""
        n = len(rows)
        table = AcceptedPoints(
            self.run_no,
            writer_no,
            series_no=np.full(n, series_no),
            env_no=np.zeros(n, dtype=np.int64),
            step=column([row[0] for row in rows]),
            rl_step=np.zeros(n, dtype=np.int64),
            time_ms=column([row[2] if len(row) > 2 else at for at, row in enumerate(rows)]),
            value=np.array([row[1] for row in rows], dtype=dtype),
        )
        self.store.commit(Commit(points=[table]))

    def episodes(self, series_no: int, writer_no: int, rows: list[tuple]) -> None:
        """EPISODE rows: (env, episode, rl_step, value)."""
        table = AcceptedPoints(
            self.run_no,
            writer_no,
            series_no=np.full(len(rows), series_no),
            env_no=column([self.env(row[0]) for row in rows]),
            step=column([row[1] for row in rows]),
            rl_step=column([row[2] for row in rows]),
            time_ms=column(range(len(rows))),
            value=np.array([row[3] for row in rows], dtype=np.float32),
            has_envs=True,
        )
        self.store.commit(Commit(points=[table]))

    def segments(self, series_no: int, writer_no: int, rows: list[tuple], cut=None) -> None:
        """ENV_STEP segments: (env, episode, generation, rl_step, first step, values)."""
        table = AcceptedSegments(
            self.run_no,
            writer_no,
            series_no,
            StepMode.AUTO,
            env_no=column([self.env(row[0]) for row in rows]),
            episode=column([row[1] for row in rows]),
            generation=column([row[2] for row in rows]),
            rl_step=column([row[3] for row in rows]),
            minor=column([0 for _ in rows]),
            step=column([row[4] for row in rows]),
            count=column([len(row[5]) for row in rows]),
            time_ms=column(range(len(rows))),
            value=np.array([v for row in rows for v in row[5]], dtype=np.float32),
        )
        cuts = []
        if cut is not None:
            env, episode, generation, discarded = cut
            cuts.append(CutRow(series_no, self.env(env), episode, generation, 5, discarded))
        self.store.commit(Commit(segments=[table], cuts=cuts))

    def attributes(self, **values: Any) -> None:
        """Run attributes; double underscores are slashes."""
        rows = [
            AttributeRow(self.run_no, None, None, path.replace("__", "/"), value)
            for path, value in values.items()
        ]
        self.store.commit(Commit(attributes=rows))

    def count(self, **counters: int) -> None:
        """Set the run's counters."""
        self.row.counters = counters
        self.store.commit(Commit(runs=[self.row]))


class EndpointTransport:
    """A transport that calls query endpoints in memory."""

    def __init__(self, service: QueryService) -> None:
        self.endpoints = query_endpoints(service)
        self.failures: list[Exception] = []
        """Raised, one a request, before any is answered."""
        self.is_closed = False

    async def post(self, path, body, *, timeout_s, content_type="application/json"):
        if self.failures:
            raise self.failures.pop(0)
        found = await answer(self.endpoints[path], body)
        if found.status >= 400:
            raise decode_error(found.status, found.body)
        return found.body

    async def close(self) -> None:
        self.is_closed = True
