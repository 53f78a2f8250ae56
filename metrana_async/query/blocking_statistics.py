"""The blocking twin of `statistics.StatisticsQueries`: one-line methods over `_wait`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from metrana_async.query.results import RunInfo
from metrana_async.query.statistics import Names, Range, Runs, StatisticsQueries
from metrana_async.query.statistics_results import (
    Buckets,
    EnvironmentTable,
    GroupStatistics,
    Latest,
    RLInfo,
    Slice,
)

_Result = TypeVar("_Result")


class BlockingStatisticsQueries(ABC):
    """The part of `BlockingQueryClient` that asks for statistics."""

    def buckets(
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
        """See QueryClient.buckets."""
        return self._wait(
            self._client.buckets(
                runs,
                metrics,
                n=n,
                axis=axis,
                from_=from_,
                to=to,
                fn=fn,
                exact=exact,
                pad=pad,
                if_version=if_version,
                scale=scale,
                labels=labels,
                env_id=env_id,
                episode=episode,
                generation=generation,
                project=project,
            )
        )

    def group_runs(
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
        """See QueryClient.group_runs."""
        return self._wait(
            self._client.group_runs(
                runs,
                metric,
                by=by,
                n=n,
                axis=axis,
                from_=from_,
                to=to,
                first=first,
                fn=fn,
                scale=scale,
                labels=labels,
                env_id=env_id,
                all_envs=all_envs,
                project=project,
            )
        )

    def rl_info(self, run: str | RunInfo, *, project: str | None = None) -> RLInfo:
        """See QueryClient.rl_info."""
        return self._wait(self._client.rl_info(run, project=project))

    def environment_table(
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
        """See QueryClient.environment_table."""
        return self._wait(
            self._client.environment_table(
                run,
                metrics,
                at=at,
                fn=fn,
                order_by=order_by,
                limit=limit,
                env_ids=env_ids,
                env_where=env_where,
                scale=scale,
                labels=labels,
                project=project,
            )
        )

    def aggregate_environments(
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
        """See QueryClient.aggregate_environments."""
        return self._wait(
            self._client.aggregate_environments(
                run,
                metric,
                over=over,
                first=first,
                fn=fn,
                by=by,
                rl_step_range=rl_step_range,
                episode_range=episode_range,
                env_ids=env_ids,
                env_where=env_where,
                scale=scale,
                labels=labels,
                project=project,
            )
        )

    # --- parts -----------------------------------------------------------------------------------
    @property
    @abstractmethod
    def _client(self) -> StatisticsQueries:
        """The client to ask."""

    @abstractmethod
    def _wait(self, question: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a question on the client's loop and wait for its answer."""
