"""The blocking twin of `run_queries.RunQueries`: one-line methods over `_wait`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from metrana_async.query.filters import Filter, FilterField
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
from metrana_async.query.run_queries import RunQueries
from metrana_async.query.tables import InfoList
from metrana_async.wire.model import ML_STEP

_Result = TypeVar("_Result")


class BlockingRunQueries(ABC):
    """The part of `BlockingQueryClient` that finds runs and changes them."""

    def runs(
        self,
        *,
        where: str | Filter | None = None,
        order_by: str | FilterField | None = None,
        limit: int | None = None,
        after: str | None = None,
        project: str | None = None,
    ) -> RunList:
        """See QueryClient.runs."""
        return self._wait(
            self._client.runs(
                where=where, order_by=order_by, limit=limit, after=after, project=project
            )
        )

    def attributes(
        self, run: str | RunInfo, *, project: str | None = None
    ) -> InfoList[AttributeInfo]:
        """See QueryClient.attributes."""
        return self._wait(self._client.attributes(run, project=project))

    def attribute_definitions(self, *, project: str | None = None) -> InfoList[AttributeDefinition]:
        """See QueryClient.attribute_definitions."""
        return self._wait(self._client.attribute_definitions(project=project))

    def metric_definitions(self, *, project: str | None = None) -> InfoList[MetricDefinition]:
        """See QueryClient.metric_definitions."""
        return self._wait(self._client.metric_definitions(project=project))

    def series_summaries(
        self,
        runs: str | RunInfo | Iterable[str | RunInfo],
        metrics: str | Iterable[str],
        *,
        project: str | None = None,
    ) -> SeriesSummaries:
        """See QueryClient.series_summaries."""
        return self._wait(self._client.series_summaries(runs, metrics, project=project))

    def scan(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        batch_rows: int = 100_000,
        scale: str = ML_STEP,
        labels: Mapping[str, str] | None = None,
        step_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> Iterator[Series]:
        """See QueryClient.scan."""
        batches = self._client.scan(
            run,
            metric,
            batch_rows=batch_rows,
            scale=scale,
            labels=labels,
            step_range=step_range,
            project=project,
        )

        return self._each(batches)

    def scan_episodes(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        batch_rows: int = 100_000,
        labels: Mapping[str, str] | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> Iterator[EpisodeSeriesTable]:
        """See QueryClient.scan_episodes."""
        return self._each(
            self._client.scan_episodes(
                run,
                metric,
                batch_rows=batch_rows,
                labels=labels,
                episode_range=episode_range,
                project=project,
            )
        )

    def scan_env_steps(
        self,
        run: str | RunInfo,
        metric: str,
        *,
        batch_rows: int = 100_000,
        labels: Mapping[str, str] | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> Iterator[EnvSeriesTable]:
        """See QueryClient.scan_env_steps."""
        return self._each(
            self._client.scan_env_steps(
                run,
                metric,
                batch_rows=batch_rows,
                labels=labels,
                episode_range=episode_range,
                project=project,
            )
        )

    def _each(self, batches: AsyncIterator[_Result]) -> Iterator[_Result]:
        async def take() -> _Result | None:
            return await anext(batches, None)

        while (batch := self._wait(take())) is not None:
            yield batch

    def rename_run(self, run: str | RunInfo, name: str, *, project: str | None = None) -> RunInfo:
        """See QueryClient.rename_run."""
        return self._wait(self._client.rename_run(run, name, project=project))

    def archive_run(self, run: str | RunInfo, *, project: str | None = None) -> RunInfo:
        """See QueryClient.archive_run."""
        return self._wait(self._client.archive_run(run, project=project))

    def unarchive_run(self, run: str | RunInfo, *, project: str | None = None) -> RunInfo:
        """See QueryClient.unarchive_run."""
        return self._wait(self._client.unarchive_run(run, project=project))

    def set_notes(self, run: str | RunInfo, notes: str, *, project: str | None = None) -> RunInfo:
        """See QueryClient.set_notes."""
        return self._wait(self._client.set_notes(run, notes, project=project))

    def tag_run(
        self,
        run: str | RunInfo,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        project: str | None = None,
    ) -> RunInfo:
        """See QueryClient.tag_run."""
        return self._wait(self._client.tag_run(run, add=add, remove=remove, project=project))

    def delete_run(self, run: str | RunInfo, *, project: str | None = None) -> None:
        """See QueryClient.delete_run."""
        return self._wait(self._client.delete_run(run, project=project))

    @property
    @abstractmethod
    def _client(self) -> RunQueries:
        """The awaited client of this process."""

    @abstractmethod
    def _wait(self, question: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a question on the client's loop and wait for its answer."""
