"""Questions of `QueryClient` about runs, and what can be done to them: one coroutine each.

A mixin over the client's `_post`. Lists are complete unless a page is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from metrana_async.errors import ProtocolError
from metrana_async.query import results
from metrana_async.query.filters import Filter, FilterField
from metrana_async.query.plain import plain
from metrana_async.query.results import (
    AttributeDefinition,
    AttributeInfo,
    EnvSeriesTable,
    EpisodeSeriesTable,
    MetricDefinition,
    RunInfo,
    RunList,
    Series,
    SeriesSummaries,
)
from metrana_async.query.tables import InfoList
from metrana_async.wire.answers import decode_columns
from metrana_async.wire.model import ML_STEP
from metrana_async.wire.queries import Query, encode_query
from metrana_async.wire.run_life import RunChange, encode_run_change
from metrana_async.wire.statistics import StatisticsQuery, encode_statistics_query

_Result = TypeVar("_Result")


class RunQueries(ABC):
    """The part of `QueryClient` that finds runs and changes them."""

    project: str | None
    workspace: str

    # --- finding -------------------------------------------------------------------------------
    async def runs(
        self,
        *,
        where: str | Filter | None = None,
        order_by: str | FilterField | None = None,
        limit: int | None = None,
        after: str | None = None,
        project: str | None = None,
    ) -> RunList:
        """Runs of the project (or workspace), oldest first: all of them, or a page.

        Args:
            where: a filter, as text (``config.lr < 1e-3 and 'best' in tags``) or built with `F`.
            order_by: a field as in a filter, with ``-`` before it for the highest first; runs
                without it come last.
            limit: most runs to answer; the answer's `after` is then the cursor of the next page.
            after: the cursor that an earlier page gave, asked with the same order.
            project: where to look, if not in the client's project.

        Raises:
            InvalidQueryError: the filter is wrong; says where, and which names are near.
        """
        query = Query(
            workspace=self.workspace,
            project=project or self.project,
            where=None if where is None else str(where),
            order_by=None if order_by is None else str(order_by),
            limit=plain(limit),
            after=after,
        )
        content = await self._post("/query/runs", encode_query(query), orjson.loads)
        try:
            return RunList([results.run_from(row) for row in content["runs"]], content["after"])
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"the answer lists no runs: {error!r}") from error

    async def attributes(
        self, run: str | RunInfo, *, project: str | None = None
    ) -> InfoList[AttributeInfo]:
        """Every current attribute of a run and of its environments, config among them."""
        query = Query(workspace=self.workspace, project=project or self.project, run=_uid(run))
        content = await self._post("/query/attributes", encode_query(query), orjson.loads)
        return InfoList(
            AttributeInfo(**{**row, "value": results.readable(row["value"])}) for row in content
        )

    async def attribute_definitions(
        self, *, project: str | None = None
    ) -> InfoList[AttributeDefinition]:
        """Every attribute path that a run of the project has, by name."""
        found = await self._definitions(project, results.rows_of(AttributeDefinition, "attributes"))
        return InfoList(replace(row, kinds=tuple(row.kinds)) for row in found)

    async def metric_definitions(self, *, project: str | None = None) -> InfoList[MetricDefinition]:
        """Every metric that a run of the project logs, by name."""
        return await self._definitions(project, results.rows_of(MetricDefinition, "metrics"))

    async def series_summaries(
        self,
        runs: str | RunInfo | Iterable[str | RunInfo],
        metrics: str | Iterable[str],
        *,
        project: str | None = None,
    ) -> SeriesSummaries:
        """last, min, max, mean, count and last_step of each metric of each run, in one question.

        A metric name means its standard series without labels, else its episodes, else its
        environment steps. A run without points of a metric has no row for it.
        """
        chosen = [runs] if isinstance(runs, (str, RunInfo)) else list(runs)
        query = StatisticsQuery(
            workspace=self.workspace,
            project=project or self.project,
            runs=[_uid(run) for run in chosen],
            metrics=[metrics] if isinstance(metrics, str) else list(metrics),
        )
        body = encode_statistics_query(query)
        answer = await self._post("/query/series_summaries", body, decode_columns)
        return results.summaries_from(answer)

    async def scan(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        batch_rows: int = 100_000,
        scale: str = ML_STEP,
        labels: Mapping[str, str] | None = None,
        step_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> AsyncIterator[Series]:
        """A standard series batch by batch, every point, in memory that does not grow with it.

        Batches have `batch_rows` rows, the last one fewer; none is empty. What is logged behind
        the point that was reached is in the batches that follow.
        """
        bounds = None if step_range is None else [plain(step) for step in step_range]
        while True:
            query = self._scan_query(
                run,
                metric,
                project=project,
                labels=labels,
                batch_rows=batch_rows,
                step_range=bounds,
                scale=scale,
            )
            answer = await self._post("/query/scan", encode_query(query), decode_columns)
            batch = results.series_from(answer)
            if len(batch):
                yield batch
            next_step = answer.scalars.get("next_step")
            if next_step is None:
                return
            bounds = [int(next_step), 2**63 - 1 if bounds is None else bounds[1]]

    async def scan_episodes(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        batch_rows: int = 100_000,
        labels: Mapping[str, str] | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> AsyncIterator[EpisodeSeriesTable]:
        """The episodes of every environment, a stretch of episodes at a time.

        A batch has all environments' rows of its episodes: about `batch_rows` of them, but at
        least one episode. None is empty.
        """
        bounds = None if episode_range is None else [plain(episode) for episode in episode_range]
        while True:
            query = self._scan_query(
                run,
                metric,
                project=project,
                labels=labels,
                batch_rows=batch_rows,
                step_range=bounds,
            )
            answer = await self._post("/query/scan_episodes", encode_query(query), decode_columns)
            batch = results.episode_series_from(answer)
            if len(batch):
                yield batch
            next_episode = answer.scalars.get("next_episode")
            if next_episode is None:
                return
            bounds = [int(next_episode), 2**63 - 1 if bounds is None else bounds[1]]

    async def scan_env_steps(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        batch_rows: int = 100_000,
        labels: Mapping[str, str] | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> AsyncIterator[EnvSeriesTable]:
        """The steps of every environment and episode, one environment after the other.

        Batches have whole episodes, about `batch_rows` rows; without episodes whole environments.
        None is empty. Together they are what `env_series_all` answers, ordered as there.
        """
        bounds = None if episode_range is None else [plain(episode) for episode in episode_range]
        after: str | None = None
        while True:
            query = self._scan_query(
                run,
                metric,
                project=project,
                labels=labels,
                batch_rows=batch_rows,
                step_range=bounds,
                after=after,
            )
            answer = await self._post("/query/scan_env_steps", encode_query(query), decode_columns)
            batch = results.env_series_from(answer)
            if len(batch):
                yield batch
            after = answer.scalars.get("after")
            if after is None:
                return

    def _scan_query(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        project: str | None,
        labels: Mapping[str, str] | None,
        batch_rows: int,
        **fields: Any,
    ) -> Query:
        return Query(
            workspace=self.workspace,
            project=project or self.project,
            run=_uid(run),
            metric=metric,
            labels=None if labels is None else dict(labels),
            limit=plain(batch_rows),
            **fields,
        )

    # --- changing ------------------------------------------------------------------------------
    async def rename_run(
        self, run: str | RunInfo, name: str, *, project: str | None = None
    ) -> RunInfo:
        """Give a run another name; uid and writers stay.

        Raises:
            RunAlreadyExistsError: another run of the project has the name.
        """
        return await self._change(run, project, name=name)

    async def archive_run(self, run: str | RunInfo, *, project: str | None = None) -> RunInfo:
        """Put a run aside: ``archived = false`` leaves it out of a list."""
        return await self._change(run, project, is_archived=True)

    async def unarchive_run(self, run: str | RunInfo, *, project: str | None = None) -> RunInfo:
        """Undo `archive_run`."""
        return await self._change(run, project, is_archived=False)

    async def set_notes(
        self, run: str | RunInfo, notes: str, *, project: str | None = None
    ) -> RunInfo:
        """Replace a run's notes."""
        return await self._change(run, project, notes=notes)

    async def tag_run(
        self,
        run: str | RunInfo,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        project: str | None = None,
    ) -> RunInfo:
        """Add tags to a run, then take tags away."""
        return await self._change(run, project, add_tags=list(add), remove_tags=list(remove))

    async def delete_run(self, run: str | RunInfo, *, project: str | None = None) -> None:
        """Delete a run with all its points, for good.

        Writers that are still at it are told, and count what they go on logging as lost.
        """
        change = self._run_change(run, project)
        await self._post("/runs/delete", encode_run_change(change), orjson.loads)

    async def _change(self, run: str | RunInfo, project: str | None, **facts: Any) -> RunInfo:
        change = self._run_change(run, project, **facts)
        content = await self._post("/runs/change", encode_run_change(change), orjson.loads)
        return results.run_from(content)

    def _run_change(self, run: str | RunInfo, project: str | None, **facts: Any) -> RunChange:
        return RunChange(
            workspace=self.workspace, project=project or self.project, run=_uid(run), **facts
        )

    async def _definitions(
        self, project: str | None, decode: Callable[[bytes], _Result]
    ) -> _Result:
        query = Query(workspace=self.workspace, project=project or self.project)
        return await self._post("/query/definitions", encode_query(query), decode)

    @abstractmethod
    async def _post(self, path: str, body: bytes, decode: Callable[[bytes], _Result]) -> _Result:
        """Ask until there is an answer or the time is up, and decode it."""


def _uid(run: str | RunInfo) -> Any:
    return run.run_uid if isinstance(run, RunInfo) else run
