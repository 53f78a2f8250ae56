"""Judges one batch: tables to the rules, what they accept to the commit, tellings to the writers.

The columns of a table keep their order; only dropped rows leave it. Nothing here loops over
points or environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metrana_async.errors import ProtocolError
from metrana_async.server.ingest.catalogue import (
    CONFLICTING,
    UNRESOLVED,
    Changes,
    RunState,
    SeriesDictionary,
)
from metrana_async.server.ingest.cursors import EpisodeCursors, RunCursors
from metrana_async.server.ingest.notices import tell
from metrana_async.server.ingest.rules.env_steps import EnvCursors, StoredSegments
from metrana_async.server.ingest.rules.points import (
    NOTHING,
    BoolArray,
    RowsVerdict,
    has_no_numbers_left,
    judge_merge,
    judge_ordered,
)
from metrana_async.server.ingest.rules.unit_table import Segments
from metrana_async.server.ingest.rules.verdict import Telling, Verdict, Writers
from metrana_async.server.ingest.windows import AxisKey
from metrana_async.server.store.base import AcceptedPoints, AcceptedSegments, CutRow
from metrana_async.wire import limits
from metrana_async.wire.acks import Outcome
from metrana_async.wire.model import (
    AUTOMATIC,
    Batch,
    FloatArray,
    Int64Array,
    PointTable,
    SegmentTable,
)


@dataclass(slots=True)
class BatchJudge:
    """Judges batches of one writer of one run into one commit."""

    run: RunState
    cursors: RunCursors
    writer: int
    writers: Writers
    changes: Changes
    now_ms: int

    def judge(self, batch: Batch, dictionary: SeriesDictionary, envs: Int64Array) -> dict[str, int]:
        """Judge a checked batch; counts by outcome.

        Raises:
            ProtocolError: automatic numbers would pass the largest step; nothing was judged.
        """
        self._resolve(batch, dictionary)
        self._check_numbers_left(batch, dictionary, envs)
        counts: dict[Outcome, int] = {}
        for table in batch.points:
            if len(table.step):
                self._judge_points(table, dictionary, envs, counts)
        for segments in batch.segments:
            if len(segments.env):
                self._judge_segments(segments, dictionary, envs, counts)
        return {outcome.value: points_count for outcome, points_count in counts.items()}

    def _resolve(self, batch: Batch, dictionary: SeriesDictionary) -> None:
        """Give every series that has points here its place in the run, and load its cursors."""
        used = [t.series for t in batch.points]
        used += [np.array([t.series], np.int64) for t in batch.segments if len(t.env)]
        for entries in used:
            unresolved = entries[dictionary.index[entries] == UNRESOLVED]
            if len(unresolved):
                _, first = np.unique(unresolved, return_index=True)
                known = len(self.run.series)
                self.run.resolve(dictionary, unresolved[np.sort(first)], self.changes)
                self.cursors.start(known)
            indexes = dictionary.index[entries]
            self.cursors.ensure(indexes[indexes >= 0], self.writers)

    def _check_numbers_left(
        self, batch: Batch, dictionary: SeriesDictionary, envs: Int64Array
    ) -> None:
        """Refuse automatic numbers beyond the largest step.

        One axis near its end says nothing about the others: where anything in the batch is, each
        axis is counted by itself.
        """
        tables = [table for table in batch.points if len(table.step)]
        if not any((table.step == AUTOMATIC).any() for table in tables):
            return
        for is_env in (False, True):
            axes = [
                self._axes(table, dictionary, envs)
                for table in tables
                if (table.env is not None) == is_env
            ]
            if not axes:
                continue
            key, step, before = (np.concatenate(column) for column in zip(*axes, strict=True))
            top = max(int(step.max(initial=NOTHING)), int(before.max(initial=NOTHING)))
            if top > limits.STEP_MAX - batch.points_count and has_no_numbers_left(
                key, step, before
            ):
                raise ProtocolError("automatic numbers would pass 2**63-1")

    def _axes(
        self, table: PointTable, dictionary: SeriesDictionary, envs: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Axis (as one number), step and highest stored step of the rows that will be judged."""
        index, step = dictionary.index[table.series], table.step
        is_judged = index != CONFLICTING
        rows = None if is_judged.all() else np.flatnonzero(is_judged).astype(np.int64, copy=False)
        index, step = _pick(index, rows), _pick(step, rows)
        if table.env is None:
            return index, step, self.cursors.standard.max_step[index]
        env_no = envs[_pick(table.env, rows)]
        before = np.full(len(index), NOTHING, np.int64)
        for one in np.unique(index).tolist():
            known = self.cursors.episodes[one].points.max_step
            mine = (index == one) & (env_no < len(known))
            before[mine] = known[env_no[mine]]
        return index * (int(envs.max()) + 1) + env_no, step, before

    # --- STANDARD and EPISODE ----------------------------------------------------------------
    def _judge_points(
        self,
        table: PointTable,
        dictionary: SeriesDictionary,
        envs: Int64Array,
        counts: dict[Outcome, int],
    ) -> None:
        indexes = dictionary.index[table.series]
        is_conflict = indexes == CONFLICTING
        rows: Int64Array | None = None
        if is_conflict.any():
            self._refuse_rows(table.series[is_conflict], dictionary, counts)
            rows = np.flatnonzero(~is_conflict).astype(np.int64, copy=False)
            if not len(rows):
                return
        columns = _PointColumns(
            index=_pick(indexes, rows),
            env_no=None if table.env is None else envs[_pick(table.env, rows)],
            step=_pick(table.step, rows),
            rl_step=None if table.rl_step is None else _pick(table.rl_step, rows),
            time_ms=_pick(table.time_ms, rows),
            value=table.value if rows is None else table.value[rows],
        )
        if columns.env_no is None:
            step, is_stored = self._judge_standard(columns, counts)
        else:
            step, is_stored = self._judge_episodes(columns, columns.env_no, counts)
        self._accept_points(columns, step, is_stored)

    def _refuse_rows(
        self, entries: Int64Array, dictionary: SeriesDictionary, counts: dict[Outcome, int]
    ) -> None:
        for entry, points_count in zip(*np.unique(entries, return_counts=True), strict=True):
            self._refuse(dictionary, int(entry), int(points_count), counts)

    def _refuse(
        self,
        dictionary: SeriesDictionary,
        entry: int,
        points_count: int,
        counts: dict[Outcome, int],
    ) -> None:
        counts[Outcome.PIN_CONFLICT] = counts.get(Outcome.PIN_CONFLICT, 0) + points_count
        telling = Telling("PinConflict", self.writer, entry, points_count=points_count)
        tell(self.run, telling, dictionary.definitions[entry], None)

    def _judge_standard(
        self, columns: _PointColumns, counts: dict[Outcome, int]
    ) -> tuple[Int64Array, BoolArray]:
        """Rows of ordered and of merge series, each under its own law."""
        index, step = columns.index, columns.step
        is_merge = self.run.is_merge[index]
        merges = int(np.count_nonzero(is_merge))
        if merges == 0:
            verdict = self._judge_ordered(index, step)
        elif merges == len(index):
            verdict = judge_merge(self.cursors.standard, index, step, self.writer, self.writers)
        else:
            ordered = self._judge_ordered(index[~is_merge], step[~is_merge])
            verdict = judge_merge(
                self.cursors.standard,
                index[is_merge],
                step[is_merge],
                self.writer,
                self.writers,
            )
            self._settle(ordered, counts, self._about_series)
            numbered, is_stored = step.copy(), np.ones(len(step), np.bool_)
            numbered[~is_merge], is_stored[~is_merge] = ordered.step, ordered.is_stored
            self._settle(verdict, counts, self._about_series)
            return numbered, is_stored
        self._settle(verdict, counts, self._about_series)
        return verdict.step, verdict.is_stored

    def _judge_ordered(self, index: Int64Array, step: Int64Array) -> RowsVerdict:
        def visible(key: int, steps: Int64Array) -> tuple[Int64Array, Int64Array]:
            axis = (self.run.series[key].series_no, None)
            highest = int(self.cursors.standard.max_step[key])
            return self.cursors.visible_rows(self.changes.commit, axis, steps, highest)

        verdict = judge_ordered(
            self.cursors.standard, index, step, self.writer, self.writers, visible=visible
        )
        if verdict.is_low is not None:
            self._note_stored(index, verdict, lambda key: (self.run.series[key].series_no, None))
        return verdict

    def _note_stored(
        self, keys: Int64Array, verdict: RowsVerdict, axis_of: Callable[[int], AxisKey]
    ) -> None:
        """Tell the cursors what was stored on the axes that were looked up, one by one.

        All of it: a row above the maximum of before may lie inside what a later row looked up.
        """
        assert verdict.is_low is not None
        is_looked_up = np.isin(keys, keys[verdict.is_low])
        rows = np.flatnonzero(is_looked_up & verdict.is_stored)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        if not len(rows):
            return
        breaks = np.flatnonzero(np.diff(keys[rows])) + 1
        for group in np.split(rows, breaks):
            axis = axis_of(int(keys[group[0]]))
            self.cursors.note_stored(axis, verdict.step[group], self.writer)

    def _judge_episodes(
        self, columns: _PointColumns, env_no: Int64Array, counts: dict[Outcome, int]
    ) -> tuple[Int64Array, BoolArray]:
        """Rows of EPISODE series, series by series (a table holds few)."""
        index, rl_step = columns.index, columns.rl_step
        assert rl_step is not None
        numbered, is_stored = columns.step.copy(), np.ones(len(index), np.bool_)
        for one in np.unique(index).tolist():
            mine = index == one
            cursors = self.cursors.episodes[one]
            keys = env_no[mine]
            cursors.reserve(int(keys.max()) + 1)
            verdict = self._judge_series_episodes(one, cursors, keys, columns.step[mine])
            numbered[mine], is_stored[mine] = verdict.step, verdict.is_stored
            kept = verdict.is_stored
            cursors.note_rl_steps(keys[kept], rl_step[mine][kept])
            self._settle(verdict, counts, self._about_env(one))
        return numbered, is_stored

    def _judge_series_episodes(
        self, index: int, cursors: EpisodeCursors, keys: Int64Array, step: Int64Array
    ) -> RowsVerdict:
        series_no = self.run.series[index].series_no

        def visible(key: int, steps: Int64Array) -> tuple[Int64Array, Int64Array]:
            highest = int(cursors.points.max_step[key])
            axis = (series_no, key)
            return self.cursors.visible_rows(self.changes.commit, axis, steps, highest)

        verdict = judge_ordered(
            cursors.points,
            keys,
            step,
            self.writer,
            self.writers,
            visible=visible,
            warns_second_writer=False,
        )
        if verdict.is_low is not None:
            self._note_stored(keys, verdict, lambda key: (series_no, key))
        return verdict

    def _accept_points(
        self, columns: _PointColumns, step: Int64Array, is_stored: BoolArray
    ) -> None:
        rows = None if is_stored.all() else np.flatnonzero(is_stored)
        if rows is not None and not len(rows):
            return
        index = _pick(columns.index, rows)
        zeros = np.zeros(len(index), np.int64)
        self.changes.commit.points.append(
            AcceptedPoints(
                run_no=self.run.row.run_no,
                writer_no=self.writer,
                series_no=self.run.series_no[index],
                env_no=zeros if columns.env_no is None else _pick(columns.env_no, rows),
                step=_pick(step, rows),
                rl_step=zeros if columns.rl_step is None else _pick(columns.rl_step, rows),
                time_ms=_pick(columns.time_ms, rows),
                value=columns.value if rows is None else columns.value[rows],
                has_envs=columns.env_no is not None,
            )
        )

    # --- ENV_STEP ------------------------------------------------------------------------------
    def _judge_segments(
        self,
        table: SegmentTable,
        dictionary: SeriesDictionary,
        envs: Int64Array,
        counts: dict[Outcome, int],
    ) -> None:
        index = int(dictionary.index[table.series])
        if index == CONFLICTING:
            self._refuse(dictionary, table.series, table.points_count, counts)
            return
        env_no = envs[table.env]
        segments = Segments(
            table.mode, env_no, table.episode, table.rl_step, table.start, table.count
        )
        series_no = self.run.series[index].series_no

        def taken_steps(env: int, episode: int, generation: int) -> Int64Array:
            unit = (env, episode)
            return self.cursors.taken_steps(self.changes.commit, series_no, unit, generation)

        cursors: EnvCursors = self.cursors.env_steps[index]
        verdict = cursors.judge(
            segments,
            self.writer,
            self.writers,
            taken_steps=taken_steps,
            cold_units=lambda env, episode: self.cursors.cold_units(index, env, episode),
        )
        run_cuts = [
            CutRow(
                series_no, cut.env, cut.episode, cut.generation, self.now_ms, cut.discarded_points
            )
            for cut in verdict.cuts
        ]
        self.changes.commit.cuts += run_cuts
        self._settle(verdict, counts, self._about_env(index))
        if len(verdict.stored.source):
            self._accept_segments(table, segments, series_no, verdict.stored)

    def _accept_segments(
        self, table: SegmentTable, segments: Segments, series_no: int, stored: StoredSegments
    ) -> None:
        is_whole = len(stored.source) == len(segments) and int(stored.count.sum()) == len(
            table.value
        )
        if is_whole:
            chosen, values, times = segments, table.value, table.point_time_ms
            segment_times = table.time_ms
        else:
            chosen = segments.take(stored.source)
            segment_times = table.time_ms[stored.source]
            before = np.cumsum(table.count) - table.count
            first = before[stored.source] + stored.offset
            starts = np.cumsum(stored.count) - stored.count
            within = np.arange(int(stored.count.sum()), dtype=np.int64)
            points = within + np.repeat(first - starts, stored.count)
            values = table.value[points]
            times = None if table.point_time_ms is None else table.point_time_ms[points]
        self.changes.commit.segments.append(
            AcceptedSegments(
                run_no=self.run.row.run_no,
                writer_no=self.writer,
                series_no=series_no,
                mode=table.mode,
                env_no=chosen.env,
                episode=chosen.episode,
                generation=stored.generation,
                rl_step=chosen.rl_step,
                minor=chosen.start + stored.offset,
                step=stored.step,
                count=stored.count,
                time_ms=segment_times,
                value=values,
                point_time_ms=times,
            )
        )

    # --- tellings ------------------------------------------------------------------------------
    def _settle(
        self,
        verdict: Verdict,
        counts: dict[Outcome, int],
        about: Callable[[Telling], tuple[int, str | None]],
    ) -> None:
        """Add up a verdict's counts and queue its tellings."""
        for outcome, points_count in verdict.counts.items():
            counts[outcome] = counts.get(outcome, 0) + points_count
        for telling in verdict.tellings:
            index, env_id = about(telling)
            tell(self.run, telling, self.run.series[index].definition, env_id)

    def _about_series(self, telling: Telling) -> tuple[int, str | None]:
        return telling.key, None

    def _about_env(self, index: int) -> Callable[[Telling], tuple[int, str | None]]:
        return lambda telling: (index, self.run.env_names[telling.key])


@dataclass(slots=True)
class _PointColumns:
    """Rows of a point table in the run's numbers."""

    index: Int64Array
    env_no: Int64Array | None
    step: Int64Array
    rl_step: Int64Array | None
    time_ms: Int64Array
    value: FloatArray


def _pick(column: Int64Array, rows: Int64Array | None) -> Int64Array:
    return column if rows is None else column[rows]
