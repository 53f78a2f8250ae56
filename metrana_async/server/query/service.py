"""Reads: from a run and names to visible columns.

Every read is complete at the moment it is made: it sees every commit that has returned, is never
sampled, and is refused when the answer would pass `limits.ANSWER_ROWS`. The store finds rows,
`resolve` says which are visible, `aggregate` reduces them; here they meet.

`QueryService` may be used from any number of threads. It keeps catalogues, what readers of curves
have got lately, and the threads that heavy reads run on, so that no read ever holds up an event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from metrana_async.errors import InvalidQueryError
from metrana_async.server.query import extents, runs
from metrana_async.server.query.aggregate import aggregate, check_function
from metrana_async.server.query.catalogue import Catalogue, Catalogues
from metrana_async.server.query.resolve import (
    Generations,
    MergedSteps,
    generation_rows,
    latest_rows,
    merge_rows,
    merge_steps,
)
from metrana_async.server.query.versions import KeptVersions
from metrana_async.server.store.base import (
    PointStore,
    RunContents,
    RunRow,
    SeriesRow,
    StoredPoints,
)
from metrana_async.wire import limits
from metrana_async.wire.model import (
    ENVIRONMENT_STEP_SCALE,
    EPISODE_SCALE,
    ML_STEP,
    Family,
    FloatArray,
    Int64Array,
    Ordering,
)

_THREADS_COUNT: Final = 2
_LEDGER_TRIES: Final = 3
_NO_LABELS: Final[Mapping[str, str]] = {}
_FAMILY_BY_SCALE: Final = {
    EPISODE_SCALE: Family.EPISODE,
    ENVIRONMENT_STEP_SCALE: Family.ENV_STEP,
}

Range = tuple[int, int]
_Result = TypeVar("_Result")


class SeriesColumns(NamedTuple):
    """A STANDARD series, ordered by step, one row a step."""

    step: Int64Array
    value: FloatArray
    time_ms: Int64Array


class EpisodeColumns(NamedTuple):
    """An EPISODE series, ordered by (env_no, episode), one row for each."""

    env_no: Int64Array
    episode: Int64Array
    rl_step: Int64Array
    value: FloatArray
    time_ms: Int64Array
    env_names: list[str]


class EnvStepColumns(NamedTuple):
    """An ENV_STEP series, ordered by (env_no, episode, env_step); episode -1 = no episodes."""

    env_no: Int64Array
    episode: Int64Array
    env_step: Int64Array
    rl_step: Int64Array
    value: FloatArray
    time_ms: Int64Array
    env_names: list[str]


class QueryService:
    """Answers queries from a store.

    Methods that read block for as long as the store does: call them through `in_thread` from an
    event loop. `NotFoundError` is raised wherever a run, series or environment is not there;
    a series without visible points gives empty columns.
    """

    def __init__(self, store: PointStore) -> None:
        self.store = self._store = store
        self.versions = KeptVersions()
        self._catalogues = Catalogues(store)
        self._threads = ThreadPoolExecutor(_THREADS_COUNT, thread_name_prefix="metrana-query")

    async def in_thread(self, read: Callable[[], _Result]) -> _Result:
        """Run a read on one of the service's threads. Cancelling leaves the read to finish."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    def close(self) -> None:
        """Let the reads in progress finish, refuse new ones. Idempotent; blocks."""
        self._threads.shutdown(wait=True)

    # --- runs --------------------------------------------------------------------------------
    def projects(self, workspace: str) -> list[dict[str, Any]]:
        """Projects of a workspace, by name: ``project``, ``runs_count``, ``last_created_ms``."""
        return runs.describe_projects(self._store.runs(), workspace)

    def run_rows(self, workspace: str, project: str | None = None) -> list[RunRow]:
        """All runs of a project (or workspace), oldest first."""
        return [
            row
            for row in self._store.runs()
            if row.workspace == workspace and project in (None, row.project)
        ]

    def contents(self, run: RunRow) -> RunContents:
        """A run's row, writers and attributes, without its series and environments."""
        return self._store.run_contents(run.run_no, with_series=False)

    def series_rows(self, run: RunRow) -> list[SeriesRow]:
        """Every series of the run, in the order they were first stored."""
        return self.catalogue(run).rows

    def catalogue(self, run: RunRow) -> Catalogue:
        """The run's series and environments as they are now."""
        return self._catalogues.refresh(run.run_no)

    def find_run(self, workspace: str, project: str | None, run: str) -> RunRow:
        """See `runs.find_run`."""
        return runs.find_run(self._store, workspace, project, run)

    def run(self, run: RunRow) -> dict[str, Any]:
        """See `runs.describe_run`."""
        return runs.describe_run(self.contents(run))

    def metrics(self, run: RunRow) -> list[dict[str, Any]]:
        """Every series of the run with its pins, in the order they were first stored."""
        return [runs.describe_series(row) for row in self.series_rows(run)]

    # --- one series ----------------------------------------------------------------------------
    def standard_series(
        self, run: RunRow, metric: str, *, scale: str, labels: Mapping[str, str]
    ) -> SeriesRow:
        """The STANDARD series of exactly this identity."""
        return self._catalogues.series(run.run_no, Family.STANDARD, metric, scale, labels)

    def series(
        self,
        run: RunRow,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Mapping[str, str] = _NO_LABELS,
        step_range: Range | None = None,
    ) -> SeriesColumns:
        """A STANDARD series. A merge series reads as the `last` value of each step."""
        series = self._catalogues.series(run.run_no, Family.STANDARD, metric, scale, labels)
        return self.series_of(series, step_range)

    def series_of(self, series: SeriesRow, step_range: Range | None) -> SeriesColumns:
        """A STANDARD series, as `series` gives it."""
        stored = self._store.read_points(series.series_no, step_range=step_range)
        if _is_merge(series):
            merged = self._merge(series, stored)
            columns = SeriesColumns(merged.step, merged.last, merged.time_ms)
        else:
            rows = latest_rows(stored.step)
            columns = SeriesColumns(stored.step[rows], stored.value[rows], stored.time_ms[rows])
        _check_rows(columns.step, series.definition.metric)
        return columns

    def standard_points(
        self,
        run: RunRow,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Mapping[str, str] = _NO_LABELS,
        step_range: Range | None = None,
    ) -> tuple[SeriesColumns, bool]:
        """A STANDARD series, and whether it merges: then every point is a row, steps repeat.

        Rows come by step; within a step of a merge series by time, writer id, arrival.
        """
        series = self._catalogues.series(run.run_no, Family.STANDARD, metric, scale, labels)
        if not _is_merge(series):
            columns = self.series(run, metric, scale=scale, labels=labels, step_range=step_range)
            return columns, False
        stored = self._store.read_points(series.series_no, step_range=step_range)
        ranks = self._catalogues.writer_ranks(run.run_no, stored.writer_no)
        rows = merge_rows(stored.step, stored.time_ms, ranks)
        _check_rows(stored.step, metric)
        return SeriesColumns(stored.step[rows], stored.value[rows], stored.time_ms[rows]), True

    def merged(
        self,
        run: RunRow,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Mapping[str, str] = _NO_LABELS,
        step_range: Range | None = None,
    ) -> MergedSteps:
        """Each step of a merge series; InvalidQueryError for an ordered one."""
        series = self._catalogues.series(run.run_no, Family.STANDARD, metric, scale, labels)
        if not _is_merge(series):
            raise InvalidQueryError(
                f"{metric!r} was logged with log(), which has one value a step and nothing to merge"
            )
        stored = self._store.read_points(series.series_no, step_range=step_range)
        merged = self._merge(series, stored)
        _check_rows(merged.step, metric)
        return merged

    def rl_series(
        self, run: RunRow, family: Family, metric: str, labels: Mapping[str, str]
    ) -> SeriesRow:
        """The RL series of exactly this identity."""
        scale = EPISODE_SCALE if family is Family.EPISODE else ENVIRONMENT_STEP_SCALE
        return self._catalogues.series(run.run_no, family, metric, scale, labels)

    def episodes_of(
        self, series: SeriesRow, episode_range: Range | None, *, env_no: int | None = None
    ) -> EpisodeColumns:
        """Rows of an EPISODE series, of any number."""
        stored = self._store.read_points(series.series_no, env_no=env_no, step_range=episode_range)
        rows = latest_rows(stored.env_no, stored.step)
        return EpisodeColumns(
            env_no=stored.env_no[rows],
            episode=stored.step[rows],
            rl_step=stored.rl_step[rows],
            value=stored.value[rows],
            time_ms=stored.time_ms[rows],
            env_names=self._catalogues.env_names(series.run_no, stored.env_no),
        )

    def env_steps_of(
        self, series: SeriesRow, env_nos: Sequence[int], episode_range: Range | None
    ) -> EnvStepColumns:
        """Rows of an ENV_STEP series in these environments, of any number."""
        return self._env_steps(series, env_nos=env_nos, episode_range=episode_range)

    def episode_series(
        self,
        run: RunRow,
        metric: str,
        *,
        env_id: str | None = None,
        labels: Mapping[str, str] = _NO_LABELS,
        episode_range: Range | None = None,
    ) -> EpisodeColumns:
        """An EPISODE series of one environment, or of all with `env_id` None."""
        series = self.rl_series(run, Family.EPISODE, metric, labels)
        env_no = None if env_id is None else self._catalogues.env_no(run.run_no, env_id)
        columns = self.episodes_of(series, episode_range, env_no=env_no)
        _check_rows(columns.episode, metric)
        return columns

    def env_series(
        self,
        run: RunRow,
        metric: str,
        *,
        env_id: str | None = None,
        labels: Mapping[str, str] = _NO_LABELS,
        episode_range: Range | None = None,
        rl_step_range: Range | None = None,
        generation: int | None = None,
    ) -> EnvStepColumns:
        """An ENV_STEP series of one environment, or of all with `env_id` None.

        `generation` None reads the current generation of each episode; a number reads exactly that
        one, superseded or not.
        """
        series = self.rl_series(run, Family.ENV_STEP, metric, labels)
        env_nos = None if env_id is None else [self._catalogues.env_no(run.run_no, env_id)]
        columns = self._env_steps(
            series,
            env_nos=env_nos,
            episode_range=episode_range,
            rl_step_range=rl_step_range,
            generation=generation,
        )
        _check_rows(columns.env_step, metric)
        return columns

    def aggregate(
        self,
        run: RunRow,
        metric: str,
        function: str,
        *,
        scale: str | None = None,
        labels: Mapping[str, str] = _NO_LABELS,
        env_id: str | None = None,
        episode: int | None = None,
    ) -> float:
        """One number over the visible points of a series.

        NaN is skipped. With `env_id` the series is an RL one (EPISODE or ENV_STEP, by `scale` or
        whichever the metric has), optionally of one `episode`; without, it is a STANDARD one.
        Over a merge series first and last go by step, then time, writer id, arrival.

        Raises:
            UnsupportedAggregationError: the kind of series does not offer `function`.
            InvalidQueryError: the metric has both RL series and no `scale` says which.
        """
        if env_id is None:
            if episode is not None:
                raise InvalidQueryError(f"episode {episode} needs an env_id")
            value = self._standard_values(run, metric, function, scale or ML_STEP, labels)
            return aggregate(value, function)
        check_function(function, is_merge=False)
        family = self.rl_family(run, metric, scale, labels)
        episodes = None if episode is None else (episode, episode)
        columns: EpisodeColumns | EnvStepColumns
        if family is Family.EPISODE:
            columns = self.episode_series(
                run, metric, env_id=env_id, labels=labels, episode_range=episodes
            )
        else:
            columns = self.env_series(
                run, metric, env_id=env_id, labels=labels, episode_range=episodes
            )
        return aggregate(columns.value, function)

    # --- over a whole run ------------------------------------------------------------------------
    def last_steps(self, run: RunRow) -> list[dict[str, Any]]:
        """Every STANDARD series that has points: its identity, pins and highest step."""
        series = self._series_of(run, Family.STANDARD)
        last = extents.last_steps(self._store, run.run_no, series)
        return [
            {**runs.describe_series(row), "last_step": last_step}
            for row, last_step in zip(series, last.tolist(), strict=True)
            if last_step != extents.NOTHING
        ]

    def environments(self, run: RunRow) -> list[dict[str, Any]]:
        """Every environment: ``env_id``, ``last_rl_step``, ``last_episode`` (None where unknown).

        The two are independent maxima over both RL functions and all labels; a restart does not
        lower them.
        """
        catalogue = self.catalogue(run)
        names = catalogue.env_names
        last_rl_step, last_episode = extents.environment_maxima(
            self._store, run.run_no, catalogue.rows, len(names)
        )
        columns = zip(names, last_rl_step.tolist(), last_episode.tolist(), strict=True)
        return [
            {
                "env_id": name,
                "last_rl_step": None if rl_step < 0 else rl_step,
                "last_episode": None if episode < 0 else episode,
            }
            for name, rl_step, episode in columns
        ]

    def env_names(self, run: RunRow) -> list[str]:
        """Every environment's id, by its number."""
        return self.catalogue(run).env_names

    def env_attributes(self, run: RunRow) -> list[tuple[int, str, Any]]:
        """Every environment's current attributes as (env_no, path, value); none of one episode."""
        return [
            (row.env_no, row.path, row.value)
            for row in self.contents(run).attributes
            if row.env_no is not None and row.episode is None
        ]

    def episode_attributes(self, run: RunRow) -> list[tuple[int, int, str, Any]]:
        """Current attributes of single episodes as (env_no, episode, path, value)."""
        return [
            (row.env_no, row.episode, row.path, row.value)
            for row in self.contents(run).attributes
            if row.env_no is not None and row.episode is not None
        ]

    def ledger(self, run: RunRow) -> dict[str, int]:
        """Where the run's committed points are; `visible` and `merged` are measured by reading.

        ``committed = visible + duplicate + replaced + merged + discarded_by_restart + superseded``
        holds whenever nothing arrives meanwhile; a read that points overtook is made again, up to
        three times. Other counters of the run are passed on under their own names.
        """
        for _ in range(_LEDGER_TRIES):
            counters = self._counters(run)
            visible = merged = 0
            for series in self._series_of(run, *Family):
                rows_visible, rows_merged = self._measure(series)
                visible += rows_visible
                merged += rows_merged
            if counters == self._counters(run):
                break
        return {**counters, "visible": visible, "merged": merged}

    # --- parts -----------------------------------------------------------------------------------
    def _counters(self, run: RunRow) -> dict[str, int]:
        names = ("stored", "duplicate", "superseded", "replaced", "discarded_by_restart")
        row = self._store.run_contents(run.run_no, with_series=False).row
        counters = dict.fromkeys(names, 0) | row.counters
        committed = counters["stored"] + counters["duplicate"] + counters["superseded"]
        return {**counters, "committed": committed}

    def _measure(self, series: SeriesRow) -> tuple[int, int]:
        """Visible and merged-away points of a series."""
        if series.definition.family is Family.ENV_STEP:
            return len(self._env_steps(series).env_step), 0
        stored = self._store.read_points(series.series_no)
        if _is_merge(series):
            steps_count = len(np.unique(stored.step))
            return steps_count, len(stored) - steps_count
        return len(stored.step[latest_rows(stored.env_no, stored.step)]), 0

    def _series_of(self, run: RunRow, *families: Family) -> list[SeriesRow]:
        return [row for row in self.series_rows(run) if row.definition.family in families]

    def _merge(self, series: SeriesRow, stored: StoredPoints) -> MergedSteps:
        ranks = self._catalogues.writer_ranks(series.run_no, stored.writer_no)
        return merge_steps(stored.step, stored.time_ms, stored.value, ranks)

    def _standard_values(
        self, run: RunRow, metric: str, function: str, scale: str, labels: Mapping[str, str]
    ) -> FloatArray:
        """Visible values in reading order; every point of a merge series is one."""
        series = self._catalogues.series(run.run_no, Family.STANDARD, metric, scale, labels)
        check_function(function, is_merge=_is_merge(series))
        stored = self._store.read_points(series.series_no)
        if _is_merge(series):
            ranks = self._catalogues.writer_ranks(run.run_no, stored.writer_no)
            return stored.value[merge_rows(stored.step, stored.time_ms, ranks)]
        return stored.value[latest_rows(stored.step)]

    def rl_family(
        self, run: RunRow, metric: str, scale: str | None, labels: Mapping[str, str]
    ) -> Family:
        """EPISODE or ENV_STEP, by `scale`, or by which of them the metric has.

        Raises:
            InvalidQueryError: the metric has both and no `scale` says which; or no RL scale.
        """
        if scale is not None:
            if scale not in _FAMILY_BY_SCALE:
                raise InvalidQueryError(
                    f"scale {scale!r} has no environments; with an env_id it is one of "
                    f"{', '.join(_FAMILY_BY_SCALE)}"
                )
            return _FAMILY_BY_SCALE[scale]
        there = [
            family
            for at_scale, family in _FAMILY_BY_SCALE.items()
            if self._catalogues.has_series(run.run_no, family, metric, at_scale, labels)
        ]
        if len(there) > 1:
            raise InvalidQueryError(
                f"{metric!r} is logged at {' and '.join(_FAMILY_BY_SCALE)}", hint="name the scale"
            )
        return there[0] if there else Family.EPISODE  # the read that follows says what is missing

    def _env_steps(
        self,
        series: SeriesRow,
        *,
        env_nos: Sequence[int] | None = None,
        episode_range: Range | None = None,
        rl_step_range: Range | None = None,
        generation: int | None = None,
    ) -> EnvStepColumns:
        # Cuts first: of a restart that is committed in between, the old generation is then read
        # whole. The other way round, its episode would look empty.
        generations = self._generations(series) if generation is None else None
        stored = self._store.read_env_steps(
            series.series_no,
            env_nos=env_nos,
            episode_range=episode_range,
            rl_step_range=rl_step_range,
        )
        wanted: Int64Array | int = (
            generations.of(stored.env_no, stored.episode)
            if generations is not None
            else generation or 0
        )
        rows = generation_rows(
            stored.env_no, stored.episode, stored.step, stored.generation, wanted
        )
        return EnvStepColumns(
            env_no=stored.env_no[rows],
            episode=stored.episode[rows],
            env_step=stored.step[rows],
            rl_step=stored.rl_step[rows],
            value=stored.value[rows],
            time_ms=stored.time_ms[rows],
            env_names=self._catalogues.env_names(series.run_no, stored.env_no),
        )

    def _generations(self, series: SeriesRow) -> Generations:
        cuts = self._store.cuts(series.series_no)
        rows = [(cut.env_no, cut.episode, cut.generation) for cut in cuts]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return Generations.from_cuts(*columns)


def _is_merge(series: SeriesRow) -> bool:
    """Whether points of one step are merged; explicit episodes replace each other instead."""
    definition = series.definition
    return definition.family is Family.STANDARD and definition.ordering is Ordering.MERGE


def _check_rows(rows: Int64Array, metric: str) -> None:
    if len(rows) > limits.ANSWER_ROWS:
        raise InvalidQueryError(
            f"{metric!r} has {len(rows)} rows, more than an answer's {limits.ANSWER_ROWS}",
            hint="read it in parts: by range of steps or episodes, or one environment at a time",
        )
