"""Questions of `QueryClient` about curves, groups and environments: one coroutine each.

A mixin over the client's `_post`; the questions are complete and exact, as all reads are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson

from metrana_async.query import statistics_results as results
from metrana_async.query.plain import plain
from metrana_async.query.results import RunInfo
from metrana_async.query.statistics_results import (
    Buckets,
    EnvironmentTable,
    Episode,
    GroupStatistics,
    Latest,
    RLInfo,
    RLStep,
    Slice,
)
from metrana_async.wire.answers import decode_columns
from metrana_async.wire.statistics import StatisticsQuery, encode_statistics_query

Runs = str | RunInfo | Sequence[str | RunInfo]
Names = str | Sequence[str]
Range = tuple[int, int]
_Result = TypeVar("_Result")


class StatisticsQueries(ABC):
    """The part of `QueryClient` that asks for statistics."""

    project: str | None
    workspace: str

    async def buckets(
        self,
        runs: Runs,
        metrics: Names,
        *,
        n: int = 500,
        axis: str = "step",
        from_: int | None = None,
        to: int | None = None,
        fn: Names | None = None,
        exact: bool = True,
        pad: float = 0.0,
        if_version: Buckets | Iterable[str] | None = None,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
        env_id: str | None = None,
        episode: int | None = None,
        generation: int | None = None,
        project: str | None = None,
    ) -> Buckets:
        """Every metric of every run as a curve, all on one grid of n to 2n buckets.

        Every point of the window is in its bucket: no minimum and no maximum is lost. Buckets are a
        power of two wide and aligned to it, so they stay as they are while a series grows.

        Args:
            runs: names, uids or what `runs()` answers; one or many.
            metrics: exact names, one or many.
            n: 1..4096; at most 2n buckets cover the window, and more than n where x has so many.
            axis: ``step``, ``time`` (Unix ms), ``relative_time`` (ms since the run was created), or
                for an RL series ``rl_step``; its ``step`` is the env step or the episode.
            from_: first x; None = the first point of all curves.
            to: last x, inclusive.
            fn: mean, min, max, first, last, sum, std; None = all. Counts always come with them.
            exact: answer a curve of at most 2n points by its points.
            pad: 0..1; how much more to answer before `from_` and behind `to`, as a share of the
                window, so that smoothing begins outside it. With it a curve is answered by its
                points where there are at most 2n(1 + 2 pad) of them, and 2n in the window itself.
            if_version: the answer that is there already (or the versions of its lines): lines that
                have not changed come without rows, others only from where they changed, if the
                server still knows; `Buckets.updated_by` puts both together.
            scale: as in `aggregate`.
            labels: exactly the labels of the series.
            env_id: read the RL series of this environment; None = standard series.
            episode: only this episode.
            generation: of that episode, one that a restart superseded; None = the current one.
            project: where the runs are, if not in the client's project.

        Raises:
            NotFoundError: no run has the series; where only some lack it, `lines` says so.
            UnsupportedAggregationError: `fn` asks a `log_distributed` series for more than min,
                max, first and last.
            InvalidQueryError: more than 1,000 curves.
        """
        query = self._statistics(
            runs,
            metrics,
            project,
            buckets=plain(n),
            axis=axis,
            from_x=plain(from_),
            to_x=plain(to),
            functions=_names(fn),
            exact=exact,
            pad=pad.item() if isinstance(pad, np.generic) else pad,
            if_version=_versions(if_version),
            scale=scale,
            labels=labels,
            env_id=env_id,
            episode=plain(episode),
            generation=plain(generation),
        )
        return results.buckets_from(await self._ask_statistics("/query/buckets", query))

    async def group_runs(
        self,
        runs: Runs,
        metric: str,
        *,
        by: Names = (),
        n: int | None = None,
        axis: str = "step",
        from_: int | None = None,
        to: int | None = None,
        first: str | None = None,
        fn: Names = ("mean", "std", "min", "max"),
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
        env_id: str | None = None,
        all_envs: bool = False,
        project: str | None = None,
    ) -> GroupStatistics:
        """Statistics across the runs of each group, at each x or bucket.

        Each run's points there are one number first, so a run weighs the same however often it
        logs. Runs may differ in length: `count` is how many have data.

        Args:
            runs: names, uids or what `runs()` answers.
            metric: exact name.
            by: what makes a group: ``config.lr``, ``tags``, ``state``, ``name`` or an attribute's
                path; several = their combinations; none = one group of all.
            n: buckets, as in `buckets`; None = every x by itself.
            axis: as in `buckets`.
            from_: first x.
            to: last x, inclusive.
            first: how a run's points at one x become a number: mean (None), or count, sum, std,
                min, max, first, last. Of a `log_distributed` series min, max, first or last (None).
            fn: mean, std, min, max, median, p0..p100, quantile:0..1.
            scale: as in `aggregate`.
            labels: exactly the labels of the series.
            env_id: the RL series of this environment.
            all_envs: the RL series of all environments: each is reduced by `first`, the run's
                number is their mean.
            project: where the runs are, if not in the client's project.

        Raises:
            NotFoundError: no run has the series, or none has a name of `by`.
            UnsupportedAggregationError: `first` or `fn` is not offered.
        """
        query = self._statistics(
            runs,
            metric,
            project,
            by=_names(by),
            buckets=plain(n),
            axis=axis,
            from_x=plain(from_),
            to_x=plain(to),
            first=first,
            functions=_names(fn),
            scale=scale,
            labels=labels,
            env_id=env_id,
            all_envs=all_envs,
        )
        return results.groups_from(await self._ask_statistics("/query/group_runs", query))

    async def rl_info(self, run: str | RunInfo, *, project: str | None = None) -> RLInfo:
        """The RL series of a run with their ranges, and what environments can be grouped by."""
        query = self._statistics(run, (), project)
        content = await self._post("/query/rl_info", encode_statistics_query(query), orjson.loads)
        return results.rl_info_from(content)

    async def environment_table(
        self,
        run: str | RunInfo,
        metrics: Names = (),
        *,
        at: Slice = Latest(),  # noqa: B008
        fn: Names = "mean",
        order_by: str | None = None,
        limit: int | None = None,
        env_ids: Names | None = None,
        env_where: Mapping[str, Any] | None = None,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
        project: str | None = None,
    ) -> EnvironmentTable:
        """One row an environment: how far it is, and its metrics at a slice.

        Args:
            run: name, uid or what `run()` answers.
            metrics: exact names of RL metrics.
            at: `Latest()` = each environment's own highest rl_step in the metric, `RLStep(k)` = the
                points logged at that rl_step, `Episode(k)` = that episode.
            fn: how an environment's points at the slice are reduced, one or several: count, sum,
                mean, std, min, max, first, last, median, p0..p100, quantile:0..1.
            order_by: ``env_id``, ``rl_step``, ``episode``, a metric or ``metric.function``; with
                ``-`` before it the highest first. NaN last. None = as they were first logged.
            limit: rows to answer.
            env_ids: only these.
            env_where: only environments whose attributes have these values.
            scale: EPISODE or ENVIRONMENT_STEP, where a metric is logged at both.
            labels: exactly the labels of the series.
            project: where the run is, if not in the client's project.

        Raises:
            NotFoundError: the run has no such metric, environment or attribute.
            InvalidQueryError: the slice or the order means nothing for the metric.
        """
        kind, number = _slice(at)
        query = self._statistics(
            run,
            metrics,
            project,
            at=kind,
            at_number=plain(number),
            functions=_names(fn),
            order_by=order_by,
            limit=plain(limit),
            env_ids=_names(env_ids),
            env_where=env_where,
            scale=scale,
            labels=labels,
        )
        answer = await self._ask_statistics("/query/environment_table", query)
        return results.environment_table_from(answer)

    async def aggregate_environments(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        over: str = "rl_step",
        first: str = "mean",
        fn: Names = ("mean", "std", "min", "max"),
        by: Names = (),
        rl_step_range: Range | None = None,
        episode_range: Range | None = None,
        env_ids: Names | None = None,
        env_where: Mapping[str, Any] | None = None,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
        project: str | None = None,
    ) -> GroupStatistics:
        """Statistics across environments, in two stages: each environment first, then across.

        Exact: every visible point takes part. NaN is skipped at both stages.

        Args:
            run: name, uid or what `run()` answers.
            metric: exact name of an RL metric.
            over: what x counts: ``rl_step``, ``episode`` or ``env_step``.
            first: how an environment's points at one x become a number: count, sum, mean, std, min,
                max, first, last, median, p0..p100, quantile:0..1.
            fn: statistics across environments: mean, std, min, max, median, p0..p100,
                quantile:0..1; the count always comes with them.
            by: attribute paths of environments or of single episodes that make groups; an episode
                has its own value, else its environment's. An environment whose episodes are in
                several groups is a member of each, with those episodes. None = one group.
            rl_step_range: first and last rl_step to read, inclusive.
            episode_range: first and last episode to read, inclusive.
            env_ids: only these environments.
            env_where: only environments whose attributes have these values; under a path that
                single episodes have values of, only such episodes.
            scale: EPISODE or ENVIRONMENT_STEP, where the metric is logged at both.
            labels: exactly the labels of the series.
            project: where the run is, if not in the client's project.

        Raises:
            NotFoundError: the run has no such metric, environment or attribute.
            InvalidQueryError: the metric has no such axis.
            UnsupportedAggregationError: `first` or `fn` is not offered.
        """
        query = self._statistics(
            run,
            metric,
            project,
            over=over,
            first=first,
            functions=_names(fn),
            by=_names(by),
            rl_step_range=_range(rl_step_range),
            episode_range=_range(episode_range),
            env_ids=_names(env_ids),
            env_where=env_where,
            scale=scale,
            labels=labels,
        )
        return results.groups_from(await self._ask_statistics("/query/across", query))

    # --- parts -----------------------------------------------------------------------------------
    def _statistics(
        self, runs: Runs, metrics: Names, project: str | None, **fields: Any
    ) -> StatisticsQuery:
        for name in ("labels", "env_where"):
            if isinstance(fields.get(name), Mapping):
                fields[name] = dict(fields[name])
        is_one = isinstance(runs, (str, RunInfo)) or not isinstance(runs, Iterable)
        several: Iterable[Any] = [runs] if is_one else runs  # type: ignore[assignment]  # not narrowed through a name
        return StatisticsQuery(
            workspace=self.workspace,
            project=project or self.project,
            runs=[run.run_uid if isinstance(run, RunInfo) else run for run in several],
            metrics=_names(metrics),
            **fields,
        )

    async def _ask_statistics(self, path: str, query: StatisticsQuery) -> Any:
        return await self._post(path, encode_statistics_query(query), decode_columns)

    @abstractmethod
    async def _post(self, path: str, body: bytes, decode: Callable[[bytes], _Result]) -> _Result:
        """Ask until there is an answer or the time is up, and decode it."""


def _names(names: Any) -> Any:
    """One name or several as a list; anything else as it is, for the encoder to refuse."""
    if isinstance(names, str):
        return [names]
    return list(names) if isinstance(names, Iterable) else names


def _versions(had: Any) -> Any:
    return had.versions if isinstance(had, Buckets) else _names(had)


def _range(bounds: Any) -> Any:
    return [plain(bound) for bound in bounds] if isinstance(bounds, Iterable) else bounds


def _slice(at: Any) -> tuple[Any, Any]:
    """The slice's kind and number."""
    if isinstance(at, RLStep):
        return "rl_step", at.rl_step
    if isinstance(at, Episode):
        return "episode", at.episode
    return ("latest" if isinstance(at, Latest) else at), None
