"""Read what was logged: one coroutine a question, columns for an answer.

The client owns one transport, made on first use. A read changes nothing, so one that got no answer
is asked again within its deadline; an answer is checked before anything of it is believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

import anyio
import orjson

from metrana_async.collector import BIG_ANSWER_BYTES, collector_resting
from metrana_async.errors import ConnectError, ProtocolError, TransportError, UsageError
from metrana_async.query import results
from metrana_async.query.plain import plain
from metrana_async.query.results import (
    EnvironmentInfo,
    EnvSeries,
    EnvSeriesTable,
    EpisodeSeries,
    EpisodeSeriesTable,
    LastStep,
    Ledger,
    MergedSeries,
    ProjectInfo,
    RunInfo,
    Series,
    SeriesInfo,
)
from metrana_async.query.run_queries import RunQueries
from metrana_async.query.statistics import StatisticsQueries
from metrana_async.query.tables import InfoList
from metrana_async.settings import resolve_settings
from metrana_async.transport.base import ServerAddress, Transport
from metrana_async.wire.answers import decode_columns, decode_number
from metrana_async.wire.model import DEFAULT_ENV, ML_STEP
from metrana_async.wire.queries import Query, encode_query

Labels = Mapping[str, str]
_PAUSES_S: Final = (0.1, 0.4, 1.0)
_Result = TypeVar("_Result")


class QueryClient(RunQueries, StatisticsQueries):
    """Reads runs, series and statistics from a server.

    Args:
        project: where run names are looked up and `runs()` looks; None = the whole workspace.
            Every method takes `project=` to look elsewhere once.
        workspace: None = ``METRANA_WORKSPACE``, else ``default``.
        url: base URL of the server; None = ``METRANA_INGESTION_URL``, else this user's local
            server of `data_dir`, which is started when it has gone to sleep.
        address: where the server listens, instead of `url`.
        token: bearer token for `url`; None = ``METRANA_API_KEY``.
        timeout_secs: longest a question may take, retries included.
        transport: answers instead of a server (tests); it is not closed with the client.

    Every method raises NotFoundError when the run, series or environment is not there, and
    TransportError when the server did not answer in time. Coroutines are cancel-safe. Use a client
    within one event loop, from any number of its tasks, and close it (``async with``).
    """

    def __init__(
        self,
        project: str | None = None,
        workspace: str | None = None,
        *,
        url: str | None = None,
        address: ServerAddress | None = None,
        token: str | None = None,
        data_dir: str | None = None,
        timeout_secs: float = 30.0,
        transport: Transport | None = None,
    ) -> None:
        settings = resolve_settings(
            project_name=project or "any",
            workspace_name=workspace,
            ingestion_url=url,
            api_key=token,
            data_dir=data_dir,
            init_mode="online",
            backpressure_strategy="block",
        )
        self.project = project
        self.workspace = settings.workspace_name
        self._data_dir = settings.data_dir
        if address is None and settings.ingestion_url is not None:
            address = ServerAddress(settings.ingestion_url, token=settings.api_key)
        self._address = address
        self._timeout_s = timeout_secs
        self._transport = transport
        self._is_transport_ours = transport is None
        self._is_closed = False
        self._connecting = anyio.Lock()

    async def __aenter__(self) -> QueryClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None and self._is_transport_ours:
            await transport.close()

    # --- runs --------------------------------------------------------------------------------
    async def projects(self) -> InfoList[ProjectInfo]:
        """The projects of the workspace, by name."""
        query = Query(workspace=self.workspace)
        return await self._ask("/query/projects", query, results.rows_of(ProjectInfo))

    async def run(self, run: str, *, project: str | None = None) -> RunInfo:
        """One run, by name or uid."""
        content = await self._ask("/query/run", self._query(run, project), orjson.loads)
        return results.run_from(content)

    async def metrics(self, run: str, *, project: str | None = None) -> InfoList[SeriesInfo]:
        """Every series of the run, in the order they were first logged."""
        query = self._query(run, project)
        return await self._ask("/query/metrics", query, results.rows_of(SeriesInfo))

    async def environments(
        self, run: str, *, project: str | None = None
    ) -> InfoList[EnvironmentInfo]:
        """Every environment of the run, in the order they were first logged."""
        query = self._query(run, project)
        return await self._ask("/query/environments", query, results.rows_of(EnvironmentInfo))

    async def last_steps(self, run: str, *, project: str | None = None) -> InfoList[LastStep]:
        """The highest step of every standard series that has points."""
        query = self._query(run, project)
        return await self._ask("/query/last_steps", query, results.rows_of(LastStep))

    async def ledger(self, run: str, *, project: str | None = None) -> Ledger:
        """Where the run's points are; reads every series of the run."""
        content = await self._ask("/query/ledger", self._query(run, project), orjson.loads)
        return results.ledger_from(content)

    # --- series --------------------------------------------------------------------------------
    async def series(
        self,
        run: str,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Labels | None = None,
        step_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> Series:
        """A standard series, every point; a `log_distributed` one reads as its last value a step.

        Args:
            run: name or uid.
            metric: exact name.
            scale: the axis its steps count.
            labels: exactly the labels of the series; None = the series without labels.
            step_range: first and last step to read, inclusive; None = all.
            project: where the run is, if not in the client's project.
        """
        query = self._query(
            run, project, metric=metric, scale=scale, labels=labels, step_range=step_range
        )
        return results.series_from(await self._ask("/query/series", query, decode_columns))

    async def merged(
        self,
        run: str,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Labels | None = None,
        step_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> MergedSeries:
        """A `log_distributed` series: min, max, first, last and count of every step."""
        query = self._query(
            run, project, metric=metric, scale=scale, labels=labels, step_range=step_range
        )
        return results.merged_from(await self._ask("/query/merged", query, decode_columns))

    async def episode_series(
        self,
        run: str,
        metric: str,
        *,
        env_id: str | None = DEFAULT_ENV,
        labels: Labels | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> EpisodeSeries:
        """The episodes of one environment (`log_rl_episode`); None is the default environment."""
        query = self._query(
            run,
            project,
            metric=metric,
            env_id=env_id or DEFAULT_ENV,
            labels=labels,
            step_range=episode_range,
        )
        table = await self._episodes(query)
        return EpisodeSeries(table.episode, table.rl_step, table.value, table.time_ms)

    async def episode_series_all(
        self,
        run: str,
        metric: str,
        *,
        labels: Labels | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> EpisodeSeriesTable:
        """The episodes of every environment in one table."""
        query = self._query(run, project, metric=metric, labels=labels, step_range=episode_range)
        return await self._episodes(query)

    async def env_series(
        self,
        run: str,
        metric: str,
        *,
        env_id: str | None = DEFAULT_ENV,
        episode: int | None = None,
        labels: Labels | None = None,
        generation: int | None = None,
        project: str | None = None,
    ) -> EnvSeries:
        """The environment steps of one environment (`log_rl_environment_step`).

        Args:
            run: name or uid.
            metric: exact name.
            env_id: None is the default environment.
            episode: one episode; None = all of them, in order.
            labels: exactly the labels of the series.
            generation: a generation that a restart superseded; None = the current one of each
                episode.
            project: where the run is, if not in the client's project.
        """
        query = self._query(
            run,
            project,
            metric=metric,
            env_id=env_id or DEFAULT_ENV,
            episode=episode,
            labels=labels,
            generation=generation,
        )
        table = await self._env_steps(query)
        return EnvSeries(table.env_step, table.value, table.rl_step, table.time_ms, table.episode)

    async def env_series_all(
        self,
        run: str,
        metric: str,
        *,
        labels: Labels | None = None,
        episode_range: tuple[int, int] | None = None,
        generation: int | None = None,
        project: str | None = None,
    ) -> EnvSeriesTable:
        """The environment steps of every environment and episode in one table."""
        query = self._query(
            run,
            project,
            metric=metric,
            labels=labels,
            step_range=episode_range,
            generation=generation,
        )
        return await self._env_steps(query)

    async def aggregate(
        self,
        run: str,
        metric: str,
        function: str,
        *,
        scale: str | None = None,
        labels: Labels | None = None,
        env_id: str | None = None,
        episode: int | None = None,
        project: str | None = None,
    ) -> float:
        """One number over every visible point of a series. NaN is skipped.

        Args:
            run: name or uid.
            metric: exact name.
            function: count, sum, mean, std (ddof 0), min, max, first, last, median, p0..p100 or
                quantile:0..1; `log_distributed` series offer min, max, first and last.
            scale: the axis; None = ML_STEP, or with `env_id` the RL scale the metric has.
            labels: exactly the labels of the series.
            env_id: read the RL series of this environment; None = the standard series.
            episode: only this episode.
            project: where the run is, if not in the client's project.

        Raises:
            UnsupportedAggregationError: the series does not offer it; names what it offers.
            InvalidQueryError: the question has no one meaning.
        """
        query = self._query(
            run,
            project,
            metric=metric,
            function=function,
            scale=scale,
            labels=labels,
            env_id=env_id,
            episode=episode,
        )
        content = await self._ask("/query/aggregate", query, orjson.loads)
        return decode_number(content.get("value"))

    # --- parts -----------------------------------------------------------------------------------
    def _query(self, run: str, project: str | None, **fields: Any) -> Query:
        labels, bounds = fields.pop("labels", None), fields.pop("step_range", None)
        for name in ("episode", "generation"):
            if name in fields:
                fields[name] = plain(fields[name])
        return Query(
            workspace=self.workspace,
            project=project or self.project,
            run=run,
            labels=dict(labels) if isinstance(labels, Mapping) else labels,
            step_range=list(map(plain, bounds)) if isinstance(bounds, Iterable) else bounds,
            **fields,
        )

    async def _episodes(self, query: Query) -> EpisodeSeriesTable:
        answer = await self._ask("/query/episode_series", query, decode_columns)
        return results.episode_series_from(answer)

    async def _env_steps(self, query: Query) -> EnvSeriesTable:
        answer = await self._ask("/query/env_series", query, decode_columns)
        return results.env_series_from(answer)

    async def _ask(self, path: str, query: Query, decode: Callable[[bytes], _Result]) -> _Result:
        return await self._post(path, encode_query(query), decode)

    async def _post(self, path: str, body: bytes, decode: Callable[[bytes], _Result]) -> _Result:
        """Ask until there is an answer or the time is up, and decode it."""
        deadline_s = time.monotonic() + self._timeout_s
        for pause_s in (*_PAUSES_S, None):
            try:
                transport = await self._connect(deadline_s)
                left_s = max(deadline_s - time.monotonic(), 0.0)
                answer = await transport.post(path, body, timeout_s=left_s)
                break
            except TransportError as error:
                if isinstance(error, ConnectError):
                    await self._forget_found()
                if pause_s is None or time.monotonic() + pause_s >= deadline_s:
                    raise
            await anyio.sleep(pause_s)
        try:
            with collector_resting(rests=len(answer) >= BIG_ANSWER_BYTES):
                return decode(answer)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"the answer of {path} is not JSON: {error}") from error

    async def _connect(self, deadline_s: float) -> Transport:
        if self._is_closed:
            raise UsageError("this query client is closed")
        if self._transport is not None:
            return self._transport
        async with self._connecting:
            if self._transport is None:
                from metrana_async.transport.http import HttpTransport

                self._transport = HttpTransport(self._address or await self._find(deadline_s))
            return self._transport

    async def _find(self, deadline_s: float) -> ServerAddress:
        from metrana_async.local import find_or_start

        left_s = max(deadline_s - time.monotonic(), 1.0)
        return await find_or_start(self._data_dir, timeout_s=left_s)

    async def _forget_found(self) -> None:
        """Look for the local server again: one that was restarted listens elsewhere."""
        if self._address is None and self._is_transport_ours and self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.close()
