"""The oracle: a store that keeps everything in lists, as plainly as it can be said.

Used in-process by tests and by `metrana_async.testing`. Every other store must answer as this one.
Not durable: `generation` is its only life.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from metrana_async.errors import NotFoundError
from metrana_async.server.query.buckets import Buckets, summarise
from metrana_async.server.store.base import (
    SEQS_KEPT,
    AcceptedPoints,
    AcceptedSegments,
    AnswerRow,
    AttributeRow,
    Commit,
    CutRow,
    DeletedRun,
    LaneRow,
    LeaseRow,
    Outline,
    RunContents,
    RunRow,
    SealUnit,
    SeriesRow,
    StoredEnvSteps,
    StoredPoints,
    WriterRow,
)
from metrana_async.wire.model import Int64Array

_AttributeKey = tuple[int, int | None, int | None, str]


class MemoryStore:
    """A `PointStore` in memory."""

    def __init__(self) -> None:
        self._generation = secrets.token_hex(16)
        self._lock = threading.RLock()
        self._runs: dict[int, RunRow] = {}
        self._writers: dict[int, WriterRow] = {}
        self._series: dict[int, SeriesRow] = {}
        self._envs: dict[int, dict[int, str]] = {}
        self._lanes: dict[tuple[int, int], LaneRow] = {}
        self._answers: dict[tuple[int, int], dict[int, AnswerRow]] = {}
        """By writer and lane, then sequence."""
        self._pages: dict[tuple[int, str], bytes] = {}
        self._attributes: dict[_AttributeKey, AttributeRow] = {}
        self._leases: dict[tuple[int, int, int], LeaseRow] = {}
        self._cuts: dict[int, list[CutRow]] = {}
        self._points: dict[int, list[AcceptedPoints]] = {}
        self._segments: dict[int, list[AcceptedSegments]] = {}
        self._sealed: dict[int, tuple[int, bytes]] = {}
        self._journal: dict[int, list[AcceptedPoints | AcceptedSegments]] = {}
        """Every table of a run in arrival order."""
        self._journal_marks: dict[int, int] = {}
        """Length of its run's journal at the last seal of a series."""
        self._deleted: dict[str, DeletedRun] = {}
        """By run uid and by writer id."""
        self._used = (0, 0, 0)
        """The highest run_no, writer_no and series_no of deleted runs."""
        self._gone_series: set[int] = set()

    @property
    def generation(self) -> str:
        """See PointStore."""
        return self._generation

    def commit(self, changes: Commit) -> None:
        """See PointStore."""
        with self._lock:
            self._runs.update((r.run_no, r) for r in changes.runs)
            self._writers.update((w.writer_no, w) for w in changes.writers)
            self._series.update((s.series_no, s) for s in changes.series)
            for run_no, env_no, name in changes.envs:
                self._envs.setdefault(run_no, {})[env_no] = name
            self._lanes.update(((x.writer_no, x.lane), x) for x in changes.lanes)
            for answer in changes.answers:
                kept = self._answers.setdefault((answer.writer_no, answer.lane), {})
                kept[answer.seq] = answer
                for seq in [seq for seq in kept if seq <= answer.seq - SEQS_KEPT]:
                    del kept[seq]
            self._pages.update(((run_no, digest), f) for run_no, digest, f in changes.pages)
            for key in changes.attributes_removed:
                self._attributes.pop(key, None)
            for row in changes.attributes:
                self._attributes[row.run_no, row.env_no, row.episode, row.path] = row
            for lease in changes.leases:
                self._leases[lease.run_no, lease.env_no, lease.writer_no] = lease
            for cut in changes.cuts:
                self._cuts.setdefault(cut.series_no, []).append(cut)
            for table in changes.points:
                for series_no in np.unique(table.series_no).tolist():
                    self._points.setdefault(series_no, []).append(table)
            for segments in changes.segments:
                self._segments.setdefault(segments.series_no, []).append(segments)
            tables: list[AcceptedPoints | AcceptedSegments] = [*changes.points, *changes.segments]
            for accepted in tables:
                self._journal.setdefault(accepted.run_no, []).append(accepted)
            for deleted in changes.deleted:
                self._delete(deleted)

    def _delete(self, deleted: DeletedRun) -> None:
        run_no = deleted.run_no
        contents = self.run_contents(run_no)
        numbers = [s.series_no for s in contents.series]
        self._deleted[deleted.run_uid] = deleted
        for writer in contents.writers:
            self._deleted[writer.writer_id] = deleted
            del self._writers[writer.writer_no]
        for lane in contents.lanes:
            del self._lanes[lane.writer_no, lane.lane]
            self._answers.pop((lane.writer_no, lane.lane), None)
        for series_no in numbers:
            for kept in (self._series, self._cuts, self._points, self._segments, self._sealed):
                kept.pop(series_no, None)
        writer_nos = [w.writer_no for w in contents.writers]
        highest = (run_no, max(writer_nos, default=0), max(numbers, default=0))
        self._used = (
            max(self._used[0], highest[0]),
            max(self._used[1], highest[1]),
            max(self._used[2], highest[2]),
        )
        self._gone_series.update(numbers)
        self._journal.pop(run_no, None)
        self._envs.pop(run_no, None)
        self._pages = {key: frame for key, frame in self._pages.items() if key[0] != run_no}
        self._attributes = {k: a for k, a in self._attributes.items() if k[0] != run_no}
        self._leases = {key: lease for key, lease in self._leases.items() if key[0] != run_no}
        del self._runs[run_no]

    def runs(self) -> list[RunRow]:
        """See PointStore."""
        with self._lock:
            return sorted(self._runs.values(), key=lambda r: (r.created_ms, r.run_no))

    def find_run(self, workspace: str, project: str, name: str) -> RunRow | None:
        """See PointStore."""
        wanted = (workspace, project, name)
        return next((r for r in self.runs() if (r.workspace, r.project, r.name) == wanted), None)

    def find_run_uid(self, run_uid: str) -> RunRow | None:
        """See PointStore."""
        return next((r for r in self.runs() if r.run_uid == run_uid), None)

    def find_writer(self, writer_id: str) -> int | None:
        """See PointStore."""
        with self._lock:
            found = (w.run_no for w in self._writers.values() if w.writer_id == writer_id)
            return next(found, None)

    def find_deleted(self, identity: str) -> DeletedRun | None:
        """See PointStore."""
        return self._deleted.get(identity)

    def run_contents(
        self, run_no: int, *, with_series: bool = True, series_after: int = 0
    ) -> RunContents:
        """See PointStore."""
        with self._lock:
            if run_no not in self._runs:
                raise NotFoundError(f"there is no run {run_no}")
            names = self._envs.get(run_no, {})
            writers = [w for w in self._writers.values() if w.run_no == run_no]
            numbers = {w.writer_no for w in writers}
            return RunContents(
                row=self._runs[run_no],
                writers=writers,
                series=[
                    s
                    for number, s in sorted(self._series.items())
                    if with_series and s.run_no == run_no and number > series_after
                ],
                env_names=[names[n] for n in range(len(names) if with_series else 0)],
                lanes=[x for x in self._lanes.values() if with_series and x.writer_no in numbers],
                attributes=[a for a in self._attributes.values() if a.run_no == run_no],
                answers=[
                    answer
                    for (writer_no, _), kept in sorted(self._answers.items())
                    if with_series and writer_no in numbers
                    for answer in kept.values()
                ],
                leases=[
                    lease
                    for key, lease in sorted(self._leases.items())
                    if with_series and key[0] == run_no
                ],
            )

    def page(self, run_no: int, digest: str) -> bytes | None:
        """See PointStore."""
        return self._pages.get((run_no, digest))

    def next_numbers(self) -> tuple[int, int, int]:
        """See PointStore."""
        with self._lock:
            kept = (self._runs, self._writers, self._series)
            used = zip((max(rows, default=0) for rows in kept), self._used, strict=True)
            run_no, writer_no, series_no = (max(pair) + 1 for pair in used)
            return run_no, writer_no, series_no

    def read_points(
        self,
        series_no: int,
        *,
        env_no: int | None = None,
        step_range: tuple[int, int] | None = None,
    ) -> StoredPoints:
        """See PointStore."""
        with self._lock:
            self._check_there(series_no)
            tables = list(self._points.get(series_no, ()))
        parts = []
        for t in tables:
            keep = t.series_no == series_no
            if env_no is not None:
                keep &= t.env_no == env_no
            if step_range is not None:
                keep &= (t.step >= step_range[0]) & (t.step <= step_range[1])
            writer = np.full(int(keep.sum()), t.writer_no, dtype=np.int64)
            columns = (t.env_no, t.step, t.rl_step, t.time_ms, t.value)
            parts.append([*(column[keep] for column in columns), writer])
        if not parts:
            none = np.empty(0, dtype=np.int64)
            return StoredPoints(none, none, none, none, np.empty(0, np.float32), none)
        return StoredPoints(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def read_env_steps(
        self,
        series_no: int,
        *,
        env_nos: Sequence[int] | None = None,
        episode_range: tuple[int, int] | None = None,
        rl_step_range: tuple[int, int] | None = None,
        episodes: Sequence[int] | None = None,
    ) -> StoredEnvSteps:
        """See PointStore."""
        with self._lock:
            self._check_there(series_no)
            tables = list(self._segments.get(series_no, ()))
        parts = []
        for table in tables:
            points = expand_segments(table)
            keep = np.ones(len(points), dtype=bool)
            if env_nos is not None:
                keep &= np.isin(points.env_no, np.asarray(env_nos, dtype=np.int64))
            if episode_range is not None:
                keep &= (points.episode >= episode_range[0]) & (points.episode <= episode_range[1])
            if episodes is not None:
                keep &= np.isin(points.episode, np.asarray(episodes, dtype=np.int64))
            if rl_step_range is not None:
                keep &= (points.rl_step >= rl_step_range[0]) & (points.rl_step <= rl_step_range[1])
            names = StoredEnvSteps.__dataclass_fields__
            parts.append([getattr(points, name)[keep] for name in names])
        if not parts:
            none = np.empty(0, dtype=np.int64)
            nothing = np.empty(0, np.float32)
            return StoredEnvSteps(none, none, none, none, none, none, nothing, none)
        return StoredEnvSteps(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def outline(self, series_no: int, step_range: tuple[int, int]) -> Outline:
        """See PointStore. Here only the points tell."""
        stored = self.read_points(series_no, step_range=step_range)
        ends = [[]] * 2 if not len(stored) else [[stored.step.min()], [stored.step.max()]]
        low, high = np.array(ends, dtype=np.int64)
        none = np.zeros(len(low), dtype=np.int64)
        return Outline(low, high, none, none - 1, none)

    def read_summaries(
        self, series_no: int, outline: Outline, level: int
    ) -> tuple[Int64Array, Buckets]:
        """See PointStore. There are none here."""
        del series_no
        return outline.place[:0], summarise(outline.low[:0], np.empty(0), level)

    def _check_there(self, series_no: int) -> None:
        if series_no in self._gone_series:
            raise NotFoundError("the run was deleted while it was read")

    def cuts(self, series_no: int) -> list[CutRow]:
        """See PointStore."""
        with self._lock:
            return list(self._cuts.get(series_no, ()))

    def heads(self, run_no: int, series_nos: Iterable[int] | None = None) -> dict[int, bytes]:
        """See PointStore."""
        with self._lock:
            wanted = (
                [s.series_no for s in self._series.values() if s.run_no == run_no]
                if series_nos is None
                else series_nos
            )
            return {n: self._sealed[n][1] for n in wanted if n in self._sealed}

    def _committed(self, series_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        return [*self._points.get(series_no, ()), *self._segments.get(series_no, ())]

    def tail(self, series_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        """See PointStore."""
        with self._lock:
            mark = self._sealed.get(series_no, (0, b""))[0]
            return self._committed(series_no)[mark:]

    def tails(self, run_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        """See PointStore."""
        with self._lock:
            journal = list(self._journal.get(run_no, ()))
            marks = dict(self._journal_marks)
        found: list[AcceptedPoints | AcceptedSegments] = []
        for at, table in enumerate(journal):
            if isinstance(table, AcceptedSegments):
                if marks.get(table.series_no, 0) <= at:
                    found.append(table)
                continue
            sealed = [n for n in np.unique(table.series_no).tolist() if marks.get(n, 0) > at]
            keep = ~np.isin(table.series_no, sealed)
            if keep.any():
                found.append(table if keep.all() else _rows(table, keep))
        return found

    def due(self, *, now_s: float, everything: bool = False) -> list[SealUnit]:
        """See PointStore. Nothing here ever needs sealing; `everything` seals for the tests."""
        del now_s
        if not everything:
            return []
        with self._lock:
            numbers = sorted({*self._points, *self._segments})
            return [SealUnit(self._series[n].run_no, (n,)) for n in numbers if self.tail(n)]

    def seal(self, unit: SealUnit, heads: dict[int, bytes]) -> None:
        """See PointStore."""
        with self._lock:
            for series_no in unit.series_nos:
                self._sealed[series_no] = (len(self._committed(series_no)), heads[series_no])
                self._journal_marks[series_no] = len(self._journal.get(unit.run_no, ()))

    def purge(self) -> bool:
        """See PointStore. What is deleted is gone at once here."""
        return False

    def improve(self) -> bool:
        """See PointStore. Nothing here is older."""
        return False

    def close(self) -> None:
        """See PointStore."""


def _rows(table: AcceptedPoints, keep: npt.NDArray[np.bool_]) -> AcceptedPoints:
    names = ("series_no", "env_no", "step", "rl_step", "time_ms", "value")
    return replace(table, **{name: getattr(table, name)[keep] for name in names})


def expand_segments(table: AcceptedSegments) -> StoredEnvSteps:
    """One row a point: the segment columns repeated, the step counting up inside a segment."""
    count = table.count
    first = np.cumsum(count) - count
    within = np.arange(len(table.value), dtype=np.int64) - np.repeat(first, count)
    time_ms = table.point_time_ms
    return StoredEnvSteps(
        env_no=np.repeat(table.env_no, count),
        episode=np.repeat(table.episode, count),
        generation=np.repeat(table.generation, count),
        rl_step=np.repeat(table.rl_step, count),
        step=np.repeat(table.step, count) + within,
        time_ms=np.repeat(table.time_ms, count) if time_ms is None else time_ms,
        value=table.value,
        writer_no=np.full(len(table.value), table.writer_no, dtype=np.int64),
    )
