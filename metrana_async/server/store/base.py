"""What a store keeps and promises: row types, the unit of commit, and the `PointStore` protocol.

Division of work: the ingest service decides (rules, numbers, generations); the store keeps what it
is given, durably and all or nothing, and hands rows back in arrival order; `query.resolve` turns
rows into what is visible. So every store is the same to the rules and to the readers, and a
contract suite holds that.

Numbers: `run_no`, `writer_no` and `series_no` are small integers of this store, `env_no` counts
within a run from 0. They never leave the server.

Arrival order is what readers rely on: of two stored rows of one series at one step the one that
was committed later is the visible one (the rules never store what an earlier row supersedes).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from metrana_async.server.query.buckets import Buckets
from metrana_async.wire import limits
from metrana_async.wire.model import FloatArray, Int64Array, SeriesDef, StepMode

SEQS_KEPT: Final = limits.REQUEST_BATCHES * 3 // 2
"""Newest sequences of a lane of which digests and answers are kept.

More than one request carries, so that whatever a retry repeats is among them; and so few that a
lane's row stays on its page of the store.
"""
_DIGEST_BYTES: Final = 8
_RECENT_BYTES: Final = (SEQS_KEPT - 1) * _DIGEST_BYTES


@dataclass(slots=True)
class RunRow:
    """One run. `counters` are points by `acks.Outcome`, over all its writers."""

    run_no: int
    run_uid: str
    workspace: str
    project: str
    name: str
    created_ms: int
    state: str
    state_ms: int
    orchestration_ids: list[str]
    exception_type: str | None = None
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def orchestration_id(self) -> str:
        """The creator's."""
        return self.orchestration_ids[0]


@dataclass(slots=True)
class WriterRow:
    """One writer incarnation. `order_us` and then `writer_id` order the writers of a run."""

    writer_no: int
    run_no: int
    writer_id: str
    order_us: int
    logger_id: str | None
    process: dict[str, Any]
    is_online: bool
    opened_ms: int
    seen_ms: int
    left: str | None = None
    """None while it may write; "closed", "shutdown" or "dead" afterwards."""
    counters: dict[str, int] = field(default_factory=dict)
    alias: str = ""
    """The run uid that this writer's batches carry in place of its run's own; "" for none."""


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """One series; pins are part of the definition as first stored."""

    series_no: int
    run_no: int
    definition: SeriesDef


@dataclass(frozen=True, slots=True)
class LaneRow:
    """High-water mark of a lane: its last sequence, and what a cloned writer is told apart by.

    `digest` is of the batch at `seq`; `recent` are those of up to SEQS_KEPT - 1 before it, oldest
    first, each as 8 bytes, low byte first. A lane of a store older than `recent` begins with none.
    """

    writer_no: int
    lane: int
    seq: int
    digest: int
    recent: bytes = b""

    def followed_by(self, digest: int) -> LaneRow:
        """The mark after one more batch."""
        recent = self.recent
        if self.seq:
            recent += self.digest.to_bytes(_DIGEST_BYTES, "little")
        kept = recent[-_RECENT_BYTES:]
        return LaneRow(self.writer_no, self.lane, self.seq + 1, digest, kept)

    def digest_at(self, seq: int) -> int | None:
        """The digest stored under a sequence up to the mark; None when it is not kept."""
        if seq == self.seq:
            return self.digest
        end = len(self.recent) - (self.seq - 1 - seq) * _DIGEST_BYTES
        kept = self.recent[max(0, end - _DIGEST_BYTES) : max(0, end)]
        return int.from_bytes(kept, "little") if kept else None

    def has_outgrown(self, seq: int) -> bool:
        """Whether a sequence is further behind the mark than any retry can be."""
        return seq <= self.seq - SEQS_KEPT and len(self.recent) == _RECENT_BYTES


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """What a batch was answered that was not simply stored; it is told again when it comes again.

    `reason` is why it was rejected, or None; `counts` what became of its points otherwise. Kept for
    the newest SEQS_KEPT sequences of a lane.
    """

    writer_no: int
    lane: int
    seq: int
    reason: str | None
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class AttributeRow:
    """A current attribute. `value` is JSON; None is the value null, not absence.

    `env_no` is None for run attributes; `episode` is None unless the attribute is of one episode.
    """

    run_no: int
    env_no: int | None
    episode: int | None
    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Episodes ``first .. first + count - 1`` of an environment, given to one writer.

    The last lease of each writer is kept: the highest end over them is the next one's beginning.
    `nonce` is drawn by the writer for each request, so that a repeated one is recognised.
    """

    run_no: int
    env_no: int
    writer_no: int
    nonce: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class CutRow:
    """A restart: generations of (series, env, episode) below `generation` are not visible."""

    series_no: int
    env_no: int
    episode: int
    generation: int
    time_ms: int
    discarded_points: int


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """What is left of a run that was deleted: enough to tell its late writers."""

    run_no: int
    run_uid: str
    workspace: str
    project: str
    name: str
    deleted_ms: int


@dataclass(slots=True)
class AcceptedPoints:
    """Rows of STANDARD or EPISODE series of one writer that the rules stored, numbered.

    `env_no` and `rl_step` are zeros for STANDARD series. A table holds one of the two families.
    """

    run_no: int
    writer_no: int
    series_no: Int64Array
    env_no: Int64Array
    step: Int64Array
    rl_step: Int64Array
    time_ms: Int64Array
    value: FloatArray
    has_envs: bool = False


@dataclass(slots=True)
class AcceptedSegments:
    """Segments of one ENV_STEP series of one writer that the rules stored, numbered.

    `step` is the visible env step of a segment's first point, `minor` the position within its
    rl_step as logged (equal to `step` under EXPLICIT). Values lie segment after segment.
    """

    run_no: int
    writer_no: int
    series_no: int
    mode: StepMode
    env_no: Int64Array
    episode: Int64Array
    generation: Int64Array
    rl_step: Int64Array
    minor: Int64Array
    step: Int64Array
    count: Int64Array
    time_ms: Int64Array
    value: FloatArray
    point_time_ms: Int64Array | None = None


@dataclass(slots=True)
class Commit:
    """Everything one durable transaction adds; rows replace rows of the same key.

    Keys: run_no; writer_no; series_no; (run_no, env_no); (writer_no, lane); (writer_no, lane, seq);
    (run_no, page digest); (run_no, env_no, episode, path); for leases (run_no, env_no, writer_no).
    `cuts` and the accepted tables only ever
    add. `deleted` takes everything of a run away and leaves the row in its place; nothing of that
    run may be in the same commit or come later.
    """

    runs: list[RunRow] = field(default_factory=list)
    writers: list[WriterRow] = field(default_factory=list)
    series: list[SeriesRow] = field(default_factory=list)
    envs: list[tuple[int, int, str]] = field(default_factory=list)
    lanes: list[LaneRow] = field(default_factory=list)
    answers: list[AnswerRow] = field(default_factory=list)
    pages: list[tuple[int, str, bytes]] = field(default_factory=list)
    attributes: list[AttributeRow] = field(default_factory=list)
    attributes_removed: list[tuple[int, int | None, int | None, str]] = field(default_factory=list)
    leases: list[LeaseRow] = field(default_factory=list)
    cuts: list[CutRow] = field(default_factory=list)
    points: list[AcceptedPoints] = field(default_factory=list)
    segments: list[AcceptedSegments] = field(default_factory=list)
    deleted: list[DeletedRun] = field(default_factory=list)

    def is_empty(self) -> bool:
        """True when committing it would change nothing."""
        return not any(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(slots=True)
class RunContents:
    """A run's catalogue, without its points."""

    row: RunRow
    writers: list[WriterRow]
    series: list[SeriesRow]
    env_names: list[str]
    lanes: list[LaneRow]
    attributes: list[AttributeRow]
    answers: list[AnswerRow] = field(default_factory=list)
    leases: list[LeaseRow] = field(default_factory=list)


@dataclass(slots=True)
class StoredPoints:
    """Rows of one STANDARD or EPISODE series; equal-length columns.

    Arrival order, for an EPISODE series within each environment. `value` is float32 or float64,
    whichever holds every value; it need not be the dtype that was committed.
    """

    env_no: Int64Array
    step: Int64Array
    rl_step: Int64Array
    time_ms: Int64Array
    value: FloatArray
    writer_no: Int64Array

    def __len__(self) -> int:
        return len(self.step)


@dataclass(slots=True)
class StoredEnvSteps:
    """Points of one ENV_STEP series; arrival order within each environment."""

    env_no: Int64Array
    episode: Int64Array
    generation: Int64Array
    rl_step: Int64Array
    step: Int64Array
    time_ms: Int64Array
    value: FloatArray
    writer_no: Int64Array

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class Outline:
    """What a store knows of a STANDARD series without its points, stretch by stretch.

    Together the stretches hold every row; they may overlap. Equal-length int64 columns.

    Attributes:
        low, high: first and last step. Of a stretch that counts nothing, at most these.
        count: rows in it, one a step; 0 where only they themselves tell.
        place: where its summaries are, for `read_summaries`; -1 where there are none.
        level: of the coarsest of them.
    """

    low: Int64Array
    high: Int64Array
    count: Int64Array
    place: Int64Array
    level: Int64Array

    def __len__(self) -> int:
        return len(self.low)

    def take(self, selection: Any) -> Outline:
        """The selected stretches: a mask or positions."""
        return Outline(*(getattr(self, name)[selection] for name in self.__dataclass_fields__))

    def joined(self, other: Outline) -> Outline:
        """These stretches and those."""
        names = self.__dataclass_fields__
        return Outline(*(np.concatenate([getattr(o, n) for o in (self, other)]) for n in names))


@dataclass(frozen=True, slots=True)
class SealUnit:
    """Series that are sealed together: 64 STANDARD series of a run, or one RL series."""

    run_no: int
    series_nos: tuple[int, ...]


class PointStore(Protocol):
    """Durable home of runs and points.

    `commit`, `due`, `seal`, `purge`, `improve`, `heads` and `tail` are called from one owner
    thread. Everything that reads may be called from any thread at any time and sees every commit
    that has returned.

    Errors: `UnavailableError` when the disk refuses (`DiskFullError`, read-only, I/O error):
    nothing of the commit is visible then and the store stays usable, unless it is a
    `StoreFailedError`. `StoreDamagedError` when stored bytes are not what was written.
    `InternalError` on a broken invariant.
    `NotFoundError` when a run is deleted while its points are read: never a part of them.
    """

    @property
    def generation(self) -> str:
        """Drawn at random whenever the store is opened (32 hex digits)."""
        ...

    def commit(self, changes: Commit) -> None:
        """Make `changes` durable in one transaction, then visible to readers; all or nothing."""
        ...

    # --- catalogue -------------------------------------------------------------------------
    def runs(self) -> list[RunRow]:
        """All runs, oldest first."""
        ...

    def find_run(self, workspace: str, project: str, name: str) -> RunRow | None:
        """The run of this name, or None."""
        ...

    def find_run_uid(self, run_uid: str) -> RunRow | None:
        """The run of this uid, or None."""
        ...

    def find_writer(self, writer_id: str) -> int | None:
        """The run_no of the run that this writer is of, or None."""
        ...

    def find_deleted(self, identity: str) -> DeletedRun | None:
        """The deleted run of this uid, or that a writer of this id was of; None when neither."""
        ...

    def run_contents(
        self, run_no: int, *, with_series: bool = True, series_after: int = 0
    ) -> RunContents:
        """The run's catalogue; NotFoundError when there is none.

        Without `with_series` its series, environments, lanes and leases are left out: a run may
        have hundreds of thousands, and a list of runs needs none. Series come by their numbers;
        with `series_after` only those of a greater one. Series never change, and one that is
        committed later has a greater number.
        """
        ...

    def page(self, run_no: int, digest: str) -> bytes | None:
        """The frame of a dictionary page, or None."""
        ...

    def next_numbers(self) -> tuple[int, int, int]:
        """First run_no, writer_no, series_no that were never used, by a deleted run neither."""
        ...

    # --- points ----------------------------------------------------------------------------
    def read_points(
        self,
        series_no: int,
        *,
        env_no: int | None = None,
        step_range: tuple[int, int] | None = None,
    ) -> StoredPoints:
        """Stored rows of a STANDARD or EPISODE series.

        `step_range` is inclusive; rows outside it may be left out but never rows inside.
        The result holds only the rows asked for.
        """
        ...

    def read_env_steps(
        self,
        series_no: int,
        *,
        env_nos: Sequence[int] | None = None,
        episode_range: tuple[int, int] | None = None,
        rl_step_range: tuple[int, int] | None = None,
        episodes: Sequence[int] | None = None,
    ) -> StoredEnvSteps:
        """Stored points of an ENV_STEP series, every generation; only the points asked for.

        Ranges are inclusive. `episodes` are these and no others; it goes without `episode_range`.
        """
        ...

    def outline(self, series_no: int, step_range: tuple[int, int]) -> Outline:
        """What is known of a STANDARD series without reading its points.

        Stretches without a step in the inclusive range may be left out.
        """
        ...

    def read_summaries(
        self, series_no: int, outline: Outline, level: int
    ) -> tuple[Int64Array, Buckets]:
        """Summaries of stretches that count their rows, on the grid of a level.

        Returns:
            The places of those of which there are any so fine, and a row for each bucket of each
            of them, in no order; a bucket that two stretches share has two. All of line 0.
        """
        ...

    def cuts(self, series_no: int) -> list[CutRow]:
        """Every restart of the series, oldest first."""
        ...

    # --- cursors and upkeep ----------------------------------------------------------------
    def heads(self, run_no: int, series_nos: Iterable[int] | None = None) -> dict[int, bytes]:
        """Cursor blobs as given to the last `seal` of each series (all of the run by default)."""
        ...

    def tail(self, series_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        """What was committed to the series after that seal, in order.

        An AcceptedPoints table may hold rows of other series too; columns may be read-only.
        """
        ...

    def tails(self, run_no: int) -> list[AcceptedPoints | AcceptedSegments]:
        """The tails of all series of a run, each series' in order. Any thread.

        To combine them with `heads`, take the tails first: what is sealed in between is then in
        both and not in neither.
        """
        ...

    def due(self, *, now_s: float, everything: bool = False) -> list[SealUnit]:
        """Units worth sealing now, most urgent first; with `everything`, all that have a tail."""
        ...

    def seal(self, unit: SealUnit, heads: dict[int, bytes]) -> None:
        """Move the unit's whole tail into sealed form, keeping `heads`, in one transaction.

        Changes nothing that a reader can see.
        """
        ...

    def purge(self) -> bool:
        """Give back some of the space of deleted runs; True when there is more to do."""
        ...

    def improve(self) -> bool:
        """Add something that an older version did not keep; True when there is more to do.

        Changes nothing that a reader can see.
        """
        ...

    def close(self) -> None:
        """Release everything. Idempotent."""
        ...
