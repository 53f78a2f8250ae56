"""Rules of ENV_STEP segments: one vector pass for what is plain, the unit judge for the rest.

The vector pass (`plain`) takes the environments on which no rule can drop, restart or warn.
Everything else — replays, take-overs, duplicates, returns to earlier episodes — goes through the
unit judge (`units`) segment by segment, per environment in lane order. A test holds both equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from metrana_async.server.ingest.rules.plain import PlainPass
from metrana_async.server.ingest.rules.unit_table import MODE_CODES, ColdUnits, Segments, UnitTable
from metrana_async.server.ingest.rules.units import (
    Piece,
    Segment,
    SegmentJudge,
    TakenSteps,
    UnitVerdict,
    absorb,
)
from metrana_async.server.ingest.rules.verdict import Telling, Writers
from metrana_async.wire.acks import Outcome
from metrana_async.wire.model import Int64Array, StepMode

# Below this many segments the vector pass costs more than judging one by one.
VECTOR_FROM_SEGMENTS: Final = 24


@dataclass(slots=True)
class StoredSegments:
    """Stored parts of segments, in lane order: int64 [p] each.

    `source` is the segment a part comes from, `offset` where in it the part begins.
    """

    source: Int64Array
    offset: Int64Array
    count: Int64Array
    generation: Int64Array
    step: Int64Array


@dataclass(slots=True)
class SegmentsVerdict(UnitVerdict):
    """What became of a table of segments."""

    stored: StoredSegments = field(
        default_factory=lambda: StoredSegments(*(np.empty(0, np.int64) for _ in range(5)))
    )


@dataclass(slots=True)
class EnvCursors:
    """State of one ENV_STEP series: its table of units, and the two ways it changes."""

    table: UnitTable = field(default_factory=UnitTable)

    # --- judging ---------------------------------------------------------------------------
    def judge(
        self,
        segments: Segments,
        writer: int,
        writers: Writers,
        *,
        taken_steps: TakenSteps,
        cold_units: ColdUnits,
    ) -> SegmentsVerdict:
        """Judge and absorb the segments of one table.

        `taken_steps` is asked only for late explicit segments, `cold_units` only for episodes
        at or below `cold_episode`, once.
        """
        verdict = SegmentsVerdict()
        rows = self._pin(segments, writer, verdict)
        chosen = segments if rows is None else segments.take(rows)
        stored = self._run(
            chosen,
            writer,
            writers,
            taken_steps=taken_steps,
            cold_units=cold_units,
            verdict=verdict,
        )
        if rows is not None:
            stored.source = rows[stored.source]
        verdict.stored = stored
        return verdict

    def _pin(self, segments: Segments, writer: int, verdict: SegmentsVerdict) -> Int64Array | None:
        """Pin unpinned environments; rows that do not conflict, None for all."""
        env = segments.env
        self.table.reserve(int(env.max()) + 1 if len(env) else 0)
        code = MODE_CODES[segments.mode]
        pinned = self.table.mode[env]
        is_conflict = (pinned != code) & (pinned != 0)
        if not is_conflict.any():
            self.table.mode[env] = code
            return None
        points_count = int(segments.count[is_conflict].sum())
        verdict.count(Outcome.PIN_CONFLICT, points_count)
        at = int(env[is_conflict][0])
        verdict.tellings.append(Telling("PinConflict", writer, at, None, points_count))
        rows = np.flatnonzero(~is_conflict).astype(np.int64, copy=False)
        self.table.mode[env[rows]] = code
        return rows

    def _run(
        self,
        segments: Segments,
        writer: int,
        writers: Writers,
        *,
        taken_steps: TakenSteps,
        cold_units: ColdUnits,
        verdict: SegmentsVerdict,
    ) -> StoredSegments:
        k = len(segments)
        plain = None
        if k >= VECTOR_FROM_SEGMENTS:
            is_live = writers.is_live(writer)
            plain = PlainPass(self.table, segments, writer, is_live=is_live)
            if plain.is_plain.all():
                verdict.count(Outcome.STORED, int(segments.count.sum()))
                step, generation = plain.absorb()
                everything = np.arange(k, dtype=np.int64)
                nothing = np.zeros(k, np.int64)
                return StoredSegments(everything, nothing, segments.count, generation, step)
        parts: list[tuple[int, int, int, int, int]] = []
        is_rest = np.ones(k, np.bool_)
        columns: list[Int64Array] = []
        if plain is not None and plain.is_plain.any():
            is_rest = ~plain.is_plain
            rows = np.flatnonzero(plain.is_plain).astype(np.int64, copy=False)
            step, generation = plain.absorb()
            verdict.count(Outcome.STORED, int(segments.count[rows].sum()))
            columns = [
                rows,
                np.zeros_like(rows),
                segments.count[rows],
                generation[rows],
                step[rows],
            ]
        fresh: dict[tuple[int, int], list[Piece]] = {}

        def taken_so_far(env: int, episode: int, generation: int) -> Int64Array:
            """What the store shows and what this very table added."""
            added = [
                np.arange(p.step, p.step + p.length, dtype=np.int64)
                for p in fresh.get((env, episode), ())
                if p.generation == generation
            ]
            return np.concatenate([taken_steps(env, episode, generation), *added])

        judge = SegmentJudge(segments.mode, writer, writers, taken_so_far, verdict)
        is_explicit = segments.mode is StepMode.EXPLICIT
        # Exceptional segments, or so few that a loop is the faster way (see the module text).
        rest = np.flatnonzero(is_rest)
        self.table.warm(segments.env[rest], segments.episode[rest], cold_units)
        for source in rest.tolist():
            segment = self._segment(segments, source)
            row, unit, others = self.table.find(segment.env, segment.episode)
            for piece in judge.judge(unit, others, segment):
                unit = absorb(unit, others, writer, segment, piece, is_explicit=is_explicit)
                row = self.table.keep(row, unit, others, segment)
                parts.append((source, piece.offset, piece.length, piece.generation, piece.step))
                if is_explicit:
                    fresh.setdefault((segment.env, segment.episode), []).append(piece)
        return _merge_parts(columns, parts)

    @staticmethod
    def _segment(segments: Segments, row: int) -> Segment:
        return Segment(
            int(segments.env[row]),
            int(segments.episode[row]),
            int(segments.rl_step[row]),
            int(segments.start[row]),
            int(segments.count[row]),
        )

    # --- replay ----------------------------------------------------------------------------
    def absorb(
        self,
        segments: Segments,
        generation: Int64Array,
        step: Int64Array,
        writer: int,
    ) -> None:
        """Take in segments that the store holds, exactly as they were taken in when judged.

        A unit that was trimmed stays so: the store, which is what it is rebuilt from, already
        holds these segments.
        """
        if not len(segments):
            return
        self.table.reserve(int(segments.env.max()) + 1)
        self.table.mode[segments.env] = MODE_CODES[segments.mode]
        is_rest = np.ones(len(segments), np.bool_)
        if len(segments) >= VECTOR_FROM_SEGMENTS:
            plain = PlainPass(self.table, segments, writer, is_live=True, generation=generation)
            plain.absorb()
            is_rest = ~plain.is_plain
        is_explicit = segments.mode is StepMode.EXPLICIT
        for source in np.flatnonzero(is_rest).tolist():
            segment = self._segment(segments, source)
            if self.table.is_cold(segment.env, segment.episode):
                self.table.note_rl_step(segment.env, segment.rl_step)
                continue
            row, unit, others = self.table.find(segment.env, segment.episode)
            piece = Piece(0, segment.length, int(generation[source]), int(step[source]))
            unit = absorb(unit, others, writer, segment, piece, is_explicit=is_explicit)
            self.table.keep(row, unit, others, segment)


def _merge_parts(
    columns: list[Int64Array], parts: list[tuple[int, int, int, int, int]]
) -> StoredSegments:
    """Vector rows and judged parts in one table, in lane order."""
    judged = np.array(parts, np.int64).reshape(-1, 5).T
    if not columns:
        return StoredSegments(*judged)
    joined = [np.concatenate(pair) for pair in zip(columns, judged, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return StoredSegments(*(column[order] for column in joined))
