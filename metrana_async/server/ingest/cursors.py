"""A run's cursors: loaded from the store on first touch, judged by the rules, dumped for seals.

Loading takes the blob of the last seal and lets the rules absorb the tail behind it, so a
restarted server judges exactly as the one before would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from metrana_async.errors import InternalError
from metrana_async.server.ingest import dumps
from metrana_async.server.ingest.catalogue import RunState
from metrana_async.server.ingest.rules.cold import rebuild_unit
from metrana_async.server.ingest.rules.env_steps import EnvCursors
from metrana_async.server.ingest.rules.points import PointCursors
from metrana_async.server.ingest.rules.unit_table import MODE_CODES, Segments
from metrana_async.server.ingest.rules.units import Others, Unit
from metrana_async.server.ingest.rules.verdict import Writers
from metrana_async.server.ingest.windows import WINDOW_STEPS, AxisKey, VisibleWindows
from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    Commit,
    PointStore,
    StoredEnvSteps,
)
from metrana_async.wire.model import Family, Int64Array

OLDER_UNITS_KEPT: Final = 16_384
"""Episodes per series kept in memory beside each environment's newest."""

_MODE_OF_CODE: Final = {code: mode for mode, code in MODE_CODES.items()}
_ONE_BY_ONE_COUNT: Final = 64
_LOOKUP_GAP: Final = 4096
_LOOKUP_STEPS_MAX: Final = 1 << 16
_LOOKUPS_MAX: Final = 16
_UNITS_READ: Final = 1024
"""Trimmed episodes of one look-up: it bounds the memory, not the result."""


@dataclass(slots=True)
class EpisodeCursors:
    """One EPISODE series: a key per environment, and each environment's greatest rl_step."""

    points: PointCursors = field(default_factory=PointCursors)
    max_rl: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def reserve(self, envs_count: int) -> None:
        """Make room for environments 0..envs_count-1."""
        self.points.reserve(envs_count)
        more = len(self.points.max_step) - len(self.max_rl)
        if more > 0:
            self.max_rl = np.concatenate([self.max_rl, np.full(more, -1, np.int64)])

    def absorb(
        self,
        envs: Int64Array,
        rows: tuple[Int64Array, Int64Array],
        writer: int,
        writers: Writers,
    ) -> None:
        """Take in stored rows: (episode, rl_step) columns."""
        episode, rl_step = rows
        self.reserve(int(envs.max()) + 1)
        self.points.absorb(envs, episode, writer, writers)
        self.note_rl_steps(envs, rl_step)

    def note_rl_steps(self, envs: Int64Array, rl_step: Int64Array) -> None:
        """Raise the environments' greatest rl_steps."""
        np.maximum.at(self.max_rl, envs, rl_step)


class RunCursors:
    """Cursors of one run's series, by series index (`RunState.series`)."""

    def __init__(self, store: PointStore, run: RunState) -> None:
        self._store = store
        self._run = run
        self._is_loaded: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._windows = VisibleWindows()
        self.standard = PointCursors()
        self.episodes: dict[int, EpisodeCursors] = {}
        self.env_steps: dict[int, EnvCursors] = {}

    # --- loading ---------------------------------------------------------------------------
    def ensure(self, indexes: Int64Array, writers: Writers) -> None:
        """Load the cursors of these series where that has not been done."""
        self._reserve()
        if self._is_loaded[indexes].all():
            return
        missing = np.unique(indexes[~self._is_loaded[indexes]]).tolist()
        numbers = [self._run.series[index].series_no for index in missing]
        heads = self._store.heads(self._run.row.run_no, numbers)
        standard: dict[int, list[AcceptedPoints]] = {}
        for index, series_no in zip(missing, numbers, strict=True):
            self._make(index, heads.get(series_no))
            for table in self._store.tail(series_no):
                if isinstance(table, AcceptedSegments):
                    self._absorb_segments(index, table)
                elif table.has_envs:
                    self._absorb_episodes(index, table, writers)
                else:
                    standard.setdefault(index, []).append(table)
        self._absorb_standard(standard, writers)
        self._is_loaded[missing] = True

    def ensure_all(self, writers: Writers) -> None:
        """Load every series of the run (seeds need them), heads and tails at once."""
        self._reserve()
        count = len(self._run.series)
        missing = np.flatnonzero(~self._is_loaded[:count])
        if len(missing) <= _ONE_BY_ONE_COUNT:
            self.ensure(missing, writers)
            return
        heads = self._store.heads(self._run.row.run_no)
        self._make_many(missing.tolist(), heads)
        is_missing = np.zeros(count, np.bool_)
        is_missing[missing] = True
        numbers = self._run.series_no[:count]  # ascending: that is how series are registered
        for table in self._store.tails(self._run.row.run_no):
            if isinstance(table, AcceptedSegments):
                index = self._run.index_by_no[table.series_no]
                if is_missing[index]:
                    self._absorb_segments(index, table)
                continue
            keys = np.searchsorted(numbers, table.series_no)
            mine = is_missing[keys]
            if table.has_envs:
                for index in np.unique(keys[mine]).tolist():
                    self._absorb_episodes(index, table, writers)
            elif mine.any():
                # A series' tables come in their order, so the last one says who stored last.
                self.standard.absorb(keys[mine], table.step[mine], table.writer_no, writers)
        self._is_loaded[missing] = True

    def _make_many(self, indexes: list[int], heads: dict[int, bytes]) -> None:
        """As `_make`, for many series at once."""
        standard: list[int] = []
        for index in indexes:
            row = self._run.series[index]
            head = heads.get(row.series_no)
            if row.definition.family is not Family.STANDARD:
                self._make(index, head)
            elif head is not None:
                standard.append(index)
        columns = dumps.standard_columns(
            [heads[self._run.series[index].series_no] for index in standard]
        )
        self.standard.max_step[standard] = columns[0]
        self.standard.last_writer[standard] = columns[1]
        self.standard.top_writer[standard] = columns[2]

    def start(self, first_index: int) -> None:
        """Begin empty cursors for the series from this index on, which were just created."""
        self._reserve()
        for index in range(first_index, len(self._run.series)):
            self._make(index, None)
        self._is_loaded[first_index : len(self._run.series)] = True

    def _reserve(self) -> None:
        count, have = len(self._run.series), len(self._is_loaded)
        if have < count:
            more = np.zeros(max(count - have, have, 64), np.bool_)
            self._is_loaded = np.concatenate([self._is_loaded, more])
            self.standard.reserve(len(self._is_loaded))

    def _make(self, index: int, head: bytes | None) -> None:
        family = self._run.series[index].definition.family
        if family is Family.STANDARD:
            if head is not None:
                dumps.load_standard(self.standard, index, head)
        elif family is Family.EPISODE:
            self.episodes[index] = EpisodeCursors(*dumps.load_episodes(head) if head else ())
        else:
            self.env_steps[index] = EnvCursors(*[dumps.load_units(head)] if head else ())

    def _absorb_episodes(self, index: int, table: AcceptedPoints, writers: Writers) -> None:
        mine = table.series_no == self._run.series[index].series_no
        if mine.any():
            rows = (table.step[mine], table.rl_step[mine])
            self.episodes[index].absorb(table.env_no[mine], rows, table.writer_no, writers)

    def _absorb_standard(self, tails: dict[int, list[AcceptedPoints]], writers: Writers) -> None:
        """Take in the tails of many series, each table once however many of them it holds.

        Only who stored last depends on the order of the tables, and that each series' own last
        table says.
        """
        if not tails:
            return
        indexes = np.array(list(tails), np.int64)
        numbers = self._run.series_no[indexes]
        order = np.argsort(numbers)
        indexes, numbers = indexes[order], numbers[order]
        for table in {id(t): t for tables in tails.values() for t in tables}.values():
            at = np.minimum(np.searchsorted(numbers, table.series_no), len(numbers) - 1)
            is_mine = numbers[at] == table.series_no
            keys, steps = indexes[at[is_mine]], table.step[is_mine]
            self.standard.absorb(keys, steps, table.writer_no, writers)
        for index, tables in tails.items():
            self.standard.last_writer[index] = tables[-1].writer_no

    def _absorb_segments(self, index: int, table: AcceptedSegments) -> None:
        columns = (table.env_no, table.episode, table.rl_step, table.minor, table.count)
        segments = Segments(table.mode, *columns)
        self.env_steps[index].absorb(segments, table.generation, table.step, table.writer_no)

    # --- look-ups of the rules ---------------------------------------------------------------
    def visible_rows(
        self, commit: Commit, axis: AxisKey, steps: Int64Array, max_step: int
    ) -> tuple[Int64Array, Int64Array]:
        """Which of `steps` (sorted, distinct) hold a row, and who wrote the visible one.

        Looks at the store and at what `commit` adds to it; the row that came last is visible.
        Reads ahead, up to the axis' greatest step, and remembers what it saw.
        """
        known = self._windows.find(axis, steps)
        if known is not None:
            return known
        low, high = int(steps[0]), int(steps[-1])
        if high - low > _LOOKUP_STEPS_MAX:
            found = [self._read_rows(commit, axis, bounds) for bounds in _ranges(steps)]
            held, writers = (np.concatenate(column) for column in zip(*found, strict=True))
        else:
            high = max(high, min(low + WINDOW_STEPS, max_step))
            held, writers = self._read_rows(commit, axis, (low, high))
            self._windows.put(axis, (low, high), held, writers.copy())
        is_wanted = np.isin(held, steps)
        return held[is_wanted], writers[is_wanted]

    def _read_rows(
        self, commit: Commit, axis: AxisKey, bounds: tuple[int, int]
    ) -> tuple[Int64Array, Int64Array]:
        """Steps with a row within inclusive bounds, ascending, and the visible rows' writers."""
        series_no, env_no = axis
        rows = self._store.read_points(series_no, env_no=env_no, step_range=bounds)
        found_steps, found_writers = [rows.step], [rows.writer_no]
        for table in commit.points:
            mine = table.series_no == series_no
            if env_no is not None:
                mine &= table.env_no == env_no
            found_steps.append(table.step[mine])
            found_writers.append(np.full(int(mine.sum()), table.writer_no, np.int64))
        step, writer = np.concatenate(found_steps), np.concatenate(found_writers)
        inside = (step >= bounds[0]) & (step <= bounds[1])
        held, last_from_end = np.unique(step[inside][::-1], return_index=True)
        return held, writer[inside][::-1][last_from_end]

    def note_stored(self, axis: AxisKey, steps: Int64Array, writer: int) -> None:
        """Rows were stored on an axis that was looked up for this table."""
        self._windows.note(axis, steps, writer)

    def taken_steps(
        self, commit: Commit, series_no: int, unit: tuple[int, int], generation: int
    ) -> Int64Array:
        """Env steps stored in a unit's generation, what `commit` adds included."""
        env, episode = unit
        points = self._store.read_env_steps(
            series_no, env_nos=[env], episode_range=(episode, episode)
        )
        found = [points.step[points.generation == generation]]
        for table in commit.segments:
            if table.series_no != series_no:
                continue
            mine = (table.env_no == env) & (table.episode == episode)
            mine &= table.generation == generation
            first, count = table.step[mine], table.count[mine]
            before = np.cumsum(count) - count
            within = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(before, count)
            found.append(np.repeat(first, count) + within)
        return np.concatenate(found)

    def cold_units(
        self, index: int, envs: Int64Array, episodes: Int64Array
    ) -> Iterator[tuple[Unit, Others]]:
        """Rebuild trimmed units, distinct (env, episode) pairs, from their stored points."""
        series_no, modes = self._run.series[index].series_no, self.env_steps[index].table.mode
        for at in range(0, len(envs), _UNITS_READ):
            some_envs, some = envs[at : at + _UNITS_READ], episodes[at : at + _UNITS_READ]
            points = self._store.read_env_steps(
                series_no,
                env_nos=np.unique(some_envs).tolist(),
                episodes=np.unique(some).tolist(),
            )
            asked = set(zip(some_envs.tolist(), some.tolist(), strict=True))
            for (env, episode), rows in _rows_by_unit(points, asked):
                rebuilt = rebuild_unit(
                    (env, episode),
                    mode=_MODE_OF_CODE[int(modes[env])],
                    generation=points.generation[rows],
                    rl_step=points.rl_step[rows],
                    step=points.step[rows],
                    writer_no=points.writer_no[rows],
                )
                if rebuilt is not None:
                    yield rebuilt

    # --- upkeep ------------------------------------------------------------------------------
    def trim(self, units_kept: int) -> None:
        """Bound the memory of old episodes; only right after a commit."""
        for cursors in self.env_steps.values():
            cursors.table.trim(units_kept)

    def dump(self, series_nos: Iterable[int], writers: Writers) -> dict[int, bytes]:
        """Heads of these series as of everything committed, for `store.seal`."""
        indexes = [self._run.index_by_no[series_no] for series_no in series_nos]
        self.ensure(np.array(indexes, np.int64), writers)
        return {self._run.series[index].series_no: self._dump(index) for index in indexes}

    def _dump(self, index: int) -> bytes:
        family = self._run.series[index].definition.family
        if family is Family.STANDARD:
            return dumps.dump_standard(self.standard, index)
        if family is Family.EPISODE:
            cursors = self.episodes[index]
            return dumps.dump_episodes(cursors.points, cursors.max_rl)
        if family is Family.ENV_STEP:
            return dumps.dump_units(self.env_steps[index].table)
        raise InternalError(f"family {family} has no cursors")


def _rows_by_unit(
    points: StoredEnvSteps, asked: set[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], Int64Array]]:
    """The rows of each (env, episode) that was asked for and has some, in arrival order."""
    if not len(points):
        return
    order = np.lexsort((points.episode, points.env_no)).astype(np.int64, copy=False)
    env, episode = points.env_no[order], points.episode[order]
    for rows in np.split(order, np.flatnonzero(np.diff(env) | np.diff(episode)) + 1):
        unit = int(points.env_no[rows[0]]), int(points.episode[rows[0]])
        if unit in asked:
            yield unit, rows


def _ranges(steps: Int64Array) -> list[tuple[int, int]]:
    """Few inclusive ranges that cover sorted steps without reading far between them."""
    breaks = np.flatnonzero(np.diff(steps) > _LOOKUP_GAP)
    if len(breaks) >= _LOOKUPS_MAX:
        return [(int(steps[0]), int(steps[-1]))]
    firsts = np.concatenate([steps[:1], steps[breaks + 1]])
    lasts = np.concatenate([steps[breaks], steps[-1:]])
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
