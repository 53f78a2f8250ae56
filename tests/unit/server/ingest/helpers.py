"""A writer for tests: opens, seals batches with pages, and talks to a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metrana_async.server.ingest.service import IngestService
from metrana_async.wire.acks import IngestReply
from metrana_async.wire.batch import encode_batch
from metrana_async.wire.frames import frame_digest
from metrana_async.wire.messages import LeaveRequest, OpenReply, OpenRequest, ProcessIdentity
from metrana_async.wire.model import (
    AUTOMATIC,
    NO_EPISODE,
    Batch,
    Family,
    Ordering,
    PointTable,
    SegmentTable,
    SeriesDef,
    StepMode,
)
from metrana_async.wire.pages import encode_env_page, encode_series_page


class Clock:
    """Unix time that moves when told."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def standard(metric: str = "loss", *, is_merge: bool = False) -> SeriesDef:
    """A STANDARD series."""
    ordering = Ordering.MERGE if is_merge else Ordering.ORDERED
    return SeriesDef(Family.STANDARD, metric, "ML_STEP", (), ordering)


def env_steps(metric: str = "r", *, episodic: bool = True) -> SeriesDef:
    """An ENV_STEP series."""
    return SeriesDef(Family.ENV_STEP, metric, "ENVIRONMENT_STEP", (), Ordering.ORDERED, episodic)


def episodes(metric: str = "ret", *, is_merge: bool = False) -> SeriesDef:
    """An EPISODE series."""
    ordering = Ordering.MERGE if is_merge else Ordering.ORDERED
    return SeriesDef(Family.EPISODE, metric, "EPISODE", (), ordering)


def i64(values: Any) -> np.ndarray:
    """An int64 column."""
    return np.asarray(values, np.int64)


def rows(steps: list[int | None], values: list[float], *, series: int = 0) -> PointTable:
    """STANDARD rows of one series; None is automatic."""
    n = len(steps)
    step = i64([AUTOMATIC if s is None else s for s in steps])
    return PointTable(i64([series] * n), step, i64([5] * n), np.float32(values))


def segments(
    parts: list[tuple[int, int | None, int, int, list[float]]],
    *,
    mode: StepMode = StepMode.AUTO,
    series: int = 0,
) -> SegmentTable:
    """Segments (env, episode, rl_step, start, values)."""
    columns = [
        i64(c)
        for c in zip(
            *((e, NO_EPISODE if ep is None else ep, rl, s, len(v), 5) for e, ep, rl, s, v in parts),
            strict=True,
        )
    ]
    return SegmentTable(series, mode, *columns, np.float32([x for p in parts for x in p[4]]))


@dataclass
class TestWriter:
    """A writer's lane 0 against a service."""

    __test__ = False

    service: IngestService
    number: int
    series: tuple[SeriesDef, ...] = (standard(),)
    envs: tuple[str, ...] = ("a", "b")
    run_name: str | None = "run"
    orchestration_id: str = "job"
    resume_strategy: str = "never"
    logger_id: str | None = None
    is_online: bool = True
    started_us: int = 0
    process: ProcessIdentity = field(default_factory=ProcessIdentity)
    attributes: list = field(default_factory=list)
    seq: int = 0
    prev: int = 0
    run_uid: str = ""
    made_up_uid: str = ""
    """What its batches name as their run, where it started without a server."""

    @property
    def writer_id(self) -> str:
        return f"{self.number:032x}"

    def open(self) -> OpenReply:
        reply = self.service.open(
            OpenRequest(
                "ws",
                "proj",
                self.run_name,
                self.orchestration_id,
                self.resume_strategy,
                self.writer_id,
                self.logger_id,
                self.started_us,
                self.is_online,
                self.process,
                self.attributes,
                run_uid=self.made_up_uid,
            )
        )
        self.run_uid = self.made_up_uid or reply.run_uid
        return reply

    @property
    def pages(self) -> bytes:
        return encode_series_page(self.series).frame + encode_env_page(self.envs).frame

    def seal(self, *tables: PointTable | SegmentTable, lane: int = 0, **extra: Any) -> bytes:
        """The next batch of the lane, as a frame."""
        self.seq += 1
        batch = Batch(self.run_uid, self.writer_id, lane, self.seq, prev_digest=self.prev, **extra)
        batch.series_pages = (encode_series_page(self.series).digest,)
        batch.env_pages = (encode_env_page(self.envs).digest,)
        batch.points = [t for t in tables if isinstance(t, PointTable)]
        batch.segments = [t for t in tables if isinstance(t, SegmentTable)]
        frame = encode_batch(batch)
        self.prev = frame_digest(frame)
        return frame

    def send(self, *tables: PointTable | SegmentTable, **extra: Any) -> IngestReply:
        return self.deliver(self.pages + self.seal(*tables, **extra))

    def deliver(self, body: bytes) -> IngestReply:
        (reply,) = self.service.ingest_many([body])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def leave(self, **options: Any):
        return self.service.leave(LeaveRequest(self.run_uid, self.writer_id, **options))


MakeWriter = Callable[..., TestWriter]
