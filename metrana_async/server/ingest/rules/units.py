"""The state of ENV_STEP units, (environment, episode) of one series, and the judge of one segment.

A unit's state is a column of twelve integers (`UNIT_*`), kept in one array by `env_steps`, that
describes its current generation and the writer who stored last in it. Other writers of the unit
are rare and live beside it in `Others`. This module is the whole rule for one segment; the vector
pass of `env_steps` answers only the plain cases (a new unit, a writer that simply goes on) and
agrees with this one there.

*minor* is the position within the rl_step under the automatic modes and the env step itself under
EXPLICIT, so that one pair (rl_step, minor) says where a writer stands in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from metrana_async.server.ingest.rules.verdict import Telling, Verdict, Writers
from metrana_async.wire.acks import Outcome
from metrana_async.wire.model import NO_EPISODE, Int64Array, StepMode

UNIT_ENV: Final = 0
UNIT_EPISODE: Final = 1
UNIT_GENERATION: Final = 2
UNIT_FIRST_RL: Final = 3
"""rl_step of the generation's first point."""
UNIT_COUNT: Final = 4
"""Points of the generation."""
UNIT_LAST_STEP: Final = 5
"""Greatest visible env step of the generation."""
UNIT_WRITER: Final = 6
"""Who stored last; the next four are this writer's first and last point in the generation."""
UNIT_W_FIRST_RL: Final = 7
UNIT_W_FIRST_MINOR: Final = 8
UNIT_W_LAST_RL: Final = 9
UNIT_W_LAST_MINOR: Final = 10
UNIT_IS_SHARED: Final = 11
"""1 when other writers stored in the unit (in whatever generation)."""
UNIT_COLUMNS: Final = 12

Unit = list[int]


class Span(NamedTuple):
    """A writer's first and last point in the current generation."""

    first_rl: int
    first_minor: int
    last_rl: int
    last_minor: int


@dataclass(slots=True)
class Others:
    """Writers of a unit beside its current one.

    Attributes:
        spans: writers with points in the current generation.
        past: writers with points in older generations only -> their last minor there.
    """

    spans: dict[int, Span] = field(default_factory=dict)
    past: dict[int, int] = field(default_factory=dict)


class Piece(NamedTuple):
    """A stored part of a segment: points offset..offset+length-1, numbered from `step`."""

    offset: int
    length: int
    generation: int
    step: int


class Segment(NamedTuple):
    """One segment, as in wire.model.SegmentTable."""

    env: int
    episode: int
    rl_step: int
    start: int
    length: int


class Cut(NamedTuple):
    """A restart: generations of the unit below `generation` are not visible any more."""

    env: int
    episode: int
    generation: int
    discarded_points: int


TakenSteps = Callable[[int, int, int], Int64Array]
"""(env, episode, generation) -> every env step stored there, this commit included; unsorted."""


@dataclass(slots=True)
class UnitVerdict(Verdict):
    """Verdict over a table's segments; `cuts` in the order they happened."""

    cuts: list[Cut] = field(default_factory=list)


def step_base(mode: StepMode) -> int:
    """Visible number of the first automatic point of a generation."""
    return 1 if mode is StepMode.AUTO_FROM_ONE else 0


def absorb(
    unit: Unit | None,
    others: Others,
    writer: int,
    segment: Segment,
    piece: Piece,
    *,
    is_explicit: bool,
) -> Unit:
    """Take in a stored piece and return the unit's state: the only way a unit ever changes."""
    rl = segment.rl_step
    minor = segment.start + piece.offset
    last_minor = minor + piece.length - 1
    last_step = piece.step + piece.length - 1
    if unit is None or piece.generation != unit[UNIT_GENERATION]:
        if unit is not None:
            others.past.update({w: span.last_minor for w, span in others.spans.items()})
            others.spans.clear()
            others.past[unit[UNIT_WRITER]] = unit[UNIT_W_LAST_MINOR]
        others.past.pop(writer, None)
        return [
            *(segment.env, segment.episode, piece.generation, rl, piece.length, last_step),
            *(writer, rl, minor, rl, last_minor, int(bool(others.past))),
        ]
    if writer != unit[UNIT_WRITER]:
        others.spans[unit[UNIT_WRITER]] = Span(*unit[UNIT_W_FIRST_RL : UNIT_W_LAST_MINOR + 1])
        own = others.spans.pop(writer, Span(rl, minor, rl, minor))
        others.past.pop(writer, None)
        unit[UNIT_WRITER] = writer
        unit[UNIT_W_FIRST_RL : UNIT_W_LAST_MINOR + 1] = own
        unit[UNIT_IS_SHARED] = 1
    unit[UNIT_COUNT] += piece.length
    unit[UNIT_LAST_STEP] = max(unit[UNIT_LAST_STEP], last_step)
    unit[UNIT_W_LAST_RL] = rl
    # A late writer fills free env steps in any order; its last one is the greatest.
    unit[UNIT_W_LAST_MINOR] = (
        max(unit[UNIT_W_LAST_MINOR], last_minor) if is_explicit else last_minor
    )
    return unit


@dataclass(slots=True)
class SegmentJudge:
    """Judges segments of one writer one at a time, into one verdict."""

    mode: StepMode
    writer: int
    writers: Writers
    taken_steps: TakenSteps
    verdict: UnitVerdict

    def judge(self, unit: Unit | None, others: Others, segment: Segment) -> list[Piece]:
        """Say which parts of a segment are stored, and under which numbers.

        At most a prefix is dropped, except where a late writer fills free env steps. Changes
        nothing; the caller absorbs the pieces before it judges the next segment of the unit.
        """
        if unit is None:
            return self._store(segment, 0, 0, self._first_step(segment))
        is_restartable = segment.episode != NO_EPISODE
        is_explicit = self.mode is StepMode.EXPLICIT
        own = self._own_span(unit, others)
        if own is None and self.writer in others.past:
            if is_restartable and self._past_may_restart(unit, others, segment):
                return self._restart(unit, others, segment)
            return self._drop(segment, Outcome.SUPERSEDED)
        successors = self._successors(unit, others)
        if is_explicit:
            return self._judge_explicit(unit, others, segment, own, successors)
        return self._judge_automatic(unit, others, segment, own, successors)

    def _judge_automatic(
        self,
        unit: Unit,
        others: Others,
        segment: Segment,
        own: Span | None,
        successors: list[Span],
    ) -> list[Piece]:
        rl, start = segment.rl_step, segment.start
        has_episodes = segment.episode != NO_EPISODE
        is_late = bool(successors)
        is_opening = has_episodes and start == 0 and rl <= unit[UNIT_FIRST_RL]
        if is_opening and not is_late:
            return self._restart(unit, others, segment)
        skip = 0
        if own is not None:
            if rl < own.last_rl:
                return self._drop(segment, Outcome.DUPLICATE)
            if rl == own.last_rl:
                skip = min(max(own.last_minor - start + 1, 0), segment.length)
        elif is_late:
            if has_episodes and any(s.first_minor == 0 and s.first_rl <= rl for s in successors):
                return self._drop(segment, Outcome.SUPERSEDED)
        else:
            self._tell_joined(unit, others, segment)
            self._tell_decreased(unit, segment)
        if is_late:
            self.verdict.count(Outcome.LATE, segment.length - skip)
        step = unit[UNIT_COUNT] + step_base(self.mode)
        return self._store(segment, skip, unit[UNIT_GENERATION], step)

    def _judge_explicit(
        self,
        unit: Unit,
        others: Others,
        segment: Segment,
        own: Span | None,
        successors: list[Span],
    ) -> list[Piece]:
        start, last = segment.start, unit[UNIT_LAST_STEP]
        end = start + segment.length - 1
        has_episodes = segment.episode != NO_EPISODE
        if successors:
            own_last = end if own is None else max(own.last_minor, end)
            if has_episodes and any(s.first_minor <= min(1, own_last) for s in successors):
                return self._drop(segment, Outcome.SUPERSEDED)
            return self._fill_free(unit, segment)
        is_again = own is None or start <= own.last_minor
        if start <= last and has_episodes and start <= 1 and is_again:
            return self._restart(unit, others, segment)
        skip = min(max(last - start + 1, 0), segment.length)
        if skip < segment.length:
            if own is None:
                self._tell_joined(unit, others, segment)
            self._tell_decreased(unit, segment)
        return self._store(segment, skip, unit[UNIT_GENERATION], start + skip)

    def _past_may_restart(self, unit: Unit, others: Others, segment: Segment) -> bool:
        """Whether a writer of a superseded generation opens the episode once more."""
        if not self.writers.is_live(self.writer):
            return False
        if self.mode is StepMode.EXPLICIT:
            return segment.start <= min(1, others.past[self.writer])
        return segment.start == 0 and segment.rl_step <= unit[UNIT_FIRST_RL]

    def _own_span(self, unit: Unit, others: Others) -> Span | None:
        if unit[UNIT_WRITER] == self.writer:
            return Span(*unit[UNIT_W_FIRST_RL : UNIT_W_LAST_MINOR + 1])
        return others.spans.get(self.writer)

    def _successors(self, unit: Unit, others: Others) -> list[Span]:
        """Spans of live or newer writers in this generation, when this writer is not live."""
        if not unit[UNIT_IS_SHARED] and unit[UNIT_WRITER] == self.writer:
            return []
        if self.writers.is_live(self.writer):
            return []
        spans = dict(others.spans)
        spans[unit[UNIT_WRITER]] = Span(*unit[UNIT_W_FIRST_RL : UNIT_W_LAST_MINOR + 1])
        return [
            span
            for other, span in spans.items()
            if other != self.writer
            and (self.writers.is_newer(other, self.writer) or self.writers.is_live(other))
        ]

    def _store(self, segment: Segment, skip: int, generation: int, step: int) -> list[Piece]:
        """Store all but a duplicate prefix, numbered on from `step`."""
        if skip:
            self._count_duplicates(segment, skip)
        rest = segment.length - skip
        self.verdict.count(Outcome.STORED, rest)
        return [Piece(skip, rest, generation, step)] if rest else []

    def _first_step(self, segment: Segment) -> int:
        return segment.start if self.mode is StepMode.EXPLICIT else step_base(self.mode)

    def _restart(self, unit: Unit, others: Others, segment: Segment) -> list[Piece]:
        generation, discarded = unit[UNIT_GENERATION] + 1, unit[UNIT_COUNT]
        self.verdict.count(Outcome.DISCARDED, discarded)
        self.verdict.cuts.append(Cut(segment.env, segment.episode, generation, discarded))
        self._tell("EpisodeRestarted", segment, self.writer, discarded, None)
        self._tell_joined(unit, others, segment)
        return self._store(segment, 0, generation, self._first_step(segment))

    def _drop(self, segment: Segment, outcome: Outcome) -> list[Piece]:
        if outcome is Outcome.DUPLICATE:
            self._count_duplicates(segment, segment.length)
        else:
            self.verdict.count(outcome, segment.length)
        return []

    def _fill_free(self, unit: Unit, segment: Segment) -> list[Piece]:
        """Store the steps of a late segment that nobody has taken."""
        generation = unit[UNIT_GENERATION]
        steps = segment.start + np.arange(segment.length, dtype=np.int64)
        taken = self.taken_steps(segment.env, segment.episode, generation)
        is_free = ~np.isin(steps, taken)
        stored = int(np.count_nonzero(is_free))
        self.verdict.count(Outcome.STORED, stored)
        self.verdict.count(Outcome.LATE, stored)
        self.verdict.count(Outcome.SUPERSEDED, segment.length - stored)
        edges = np.flatnonzero(np.diff(is_free, prepend=False, append=False))
        return [
            Piece(first, stop - first, generation, segment.start + first)
            for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        ]

    def _count_duplicates(self, segment: Segment, points_count: int) -> None:
        self.verdict.count(Outcome.DUPLICATE, points_count)
        self._tell("DuplicateStep", segment, self.writer, points_count, None)

    def _tell_joined(self, unit: Unit, others: Others, segment: Segment) -> None:
        """Two live writers on one unit: each is told of the other."""
        if not self.writers.is_live(self.writer):
            return
        kind = "SecondWriter" if segment.episode == NO_EPISODE else "EpisodeTakenOver"
        for other in [unit[UNIT_WRITER], *others.spans]:
            if other != self.writer and self.writers.is_live(other):
                self._tell(kind, segment, self.writer, 0, other)
                self._tell(kind, segment, other, 0, self.writer)

    def _tell_decreased(self, unit: Unit, segment: Segment) -> None:
        if segment.rl_step < unit[UNIT_W_LAST_RL]:
            self._tell("RlStepDecreased", segment, self.writer, 0, None)

    def _tell(
        self, kind: str, segment: Segment, recipient: int, points_count: int, other: int | None
    ) -> None:
        episode = None if segment.episode == NO_EPISODE else segment.episode
        self.verdict.tellings.append(
            Telling(kind, recipient, segment.env, episode, points_count, other)
        )
