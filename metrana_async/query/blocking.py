"""The blocking query client: the same questions, asked from ordinary code.

Every method is a one-line twin of `QueryClient`'s; the one place that waits is `_wait`. The client
has an event loop of its own in a daemon thread, started on first use, so it works in a plain
script, in any thread and inside somebody's running loop (which it blocks meanwhile, as any blocking
call does). After a fork the child gets a fresh loop and fresh connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

from metrana_async.errors import UsageError
from metrana_async.query.blocking_runs import BlockingRunQueries
from metrana_async.query.blocking_statistics import BlockingStatisticsQueries
from metrana_async.query.client import Labels, QueryClient
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
from metrana_async.query.tables import InfoList
from metrana_async.transport.base import ServerAddress, Transport
from metrana_async.wire.model import DEFAULT_ENV, ML_STEP

_Result = TypeVar("_Result")
_CLOSE_S: Final = 5.0


class BlockingQueryClient(BlockingRunQueries, BlockingStatisticsQueries):
    """`QueryClient` for code that does not await: same arguments, answers and errors.

    Thread-safe: several threads may ask at once.
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
        self._make_client = partial(
            QueryClient,
            project,
            workspace,
            url=url,
            address=address,
            token=token,
            data_dir=data_dir,
            timeout_secs=timeout_secs,
            transport=transport,
        )
        self._asked = self._make_client()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._release: weakref.finalize[Any, Any] | None = None
        self._is_closed = False

    @property
    def project(self) -> str | None:
        """Where run names are looked up, or None."""
        return self._asked.project

    @property
    def workspace(self) -> str:
        """The workspace that is read."""
        return self._asked.workspace

    def __enter__(self) -> BlockingQueryClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._loop = None
        if self._release is not None:
            self._release()

    def projects(self) -> InfoList[ProjectInfo]:
        """See QueryClient.projects."""
        return self._wait(self._client.projects())

    def run(self, run: str, *, project: str | None = None) -> RunInfo:
        """See QueryClient.run."""
        return self._wait(self._client.run(run, project=project))

    def metrics(self, run: str, *, project: str | None = None) -> InfoList[SeriesInfo]:
        """See QueryClient.metrics."""
        return self._wait(self._client.metrics(run, project=project))

    def environments(self, run: str, *, project: str | None = None) -> InfoList[EnvironmentInfo]:
        """See QueryClient.environments."""
        return self._wait(self._client.environments(run, project=project))

    def last_steps(self, run: str, *, project: str | None = None) -> InfoList[LastStep]:
        """See QueryClient.last_steps."""
        return self._wait(self._client.last_steps(run, project=project))

    def ledger(self, run: str, *, project: str | None = None) -> Ledger:
        """See QueryClient.ledger."""
        return self._wait(self._client.ledger(run, project=project))

    def series(
        self,
        run: str,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Labels | None = None,
        step_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> Series:
        """See QueryClient.series."""
        return self._wait(
            self._client.series(
                run, metric, scale=scale, labels=labels, step_range=step_range, project=project
            )
        )

    def merged(
        self,
        run: str,
        metric: str,
        *,
        scale: str = ML_STEP,
        labels: Labels | None = None,
        step_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> MergedSeries:
        """See QueryClient.merged."""
        return self._wait(
            self._client.merged(
                run, metric, scale=scale, labels=labels, step_range=step_range, project=project
            )
        )

    def episode_series(
        self,
        run: str,
        metric: str,
        *,
        env_id: str | None = DEFAULT_ENV,
        labels: Labels | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> EpisodeSeries:
        """See QueryClient.episode_series."""
        return self._wait(
            self._client.episode_series(
                run,
                metric,
                env_id=env_id,
                labels=labels,
                episode_range=episode_range,
                project=project,
            )
        )

    def episode_series_all(
        self,
        run: str,
        metric: str,
        *,
        labels: Labels | None = None,
        episode_range: tuple[int, int] | None = None,
        project: str | None = None,
    ) -> EpisodeSeriesTable:
        """See QueryClient.episode_series_all."""
        return self._wait(
            self._client.episode_series_all(
                run, metric, labels=labels, episode_range=episode_range, project=project
            )
        )

    def env_series(
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
        """See QueryClient.env_series."""
        return self._wait(
            self._client.env_series(
                run,
                metric,
                env_id=env_id,
                episode=episode,
                labels=labels,
                generation=generation,
                project=project,
            )
        )

    def env_series_all(
        self,
        run: str,
        metric: str,
        *,
        labels: Labels | None = None,
        episode_range: tuple[int, int] | None = None,
        generation: int | None = None,
        project: str | None = None,
    ) -> EnvSeriesTable:
        """See QueryClient.env_series_all."""
        return self._wait(
            self._client.env_series_all(
                run,
                metric,
                labels=labels,
                episode_range=episode_range,
                generation=generation,
                project=project,
            )
        )

    def aggregate(
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
        """See QueryClient.aggregate."""
        return self._wait(
            self._client.aggregate(
                run,
                metric,
                function,
                scale=scale,
                labels=labels,
                env_id=env_id,
                episode=episode,
                project=project,
            )
        )

    @property
    def _client(self) -> QueryClient:
        """The client to ask; after a fork, one without the parent's connections."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
            self._asked, self._loop = self._make_client(), None
        return self._asked

    def _wait(self, question: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a question on the client's loop and wait for its answer. The one place that waits."""
        try:
            loop = self._running_loop()
        except UsageError:
            question.close()
            raise
        future = asyncio.run_coroutine_threadsafe(question, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread ends the question as well
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise UsageError("this query client is closed")
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run_loop, args=(loop,), name="metrana-query-client", daemon=True
                )
                thread.start()
                # Also when the client is forgotten, and when the program ends.
                self._release = weakref.finalize(
                    self, _shut, self._asked, loop, thread, os.getpid()
                )
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Serve a loop until it is stopped, then release what it holds."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _shut(
    client: QueryClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int
) -> None:
    """Close a client on its loop, then end loop and thread."""
    if pid != os.getpid():
        return  # a fork's copy: loop, thread and sockets are the parent's

    async def close_and_stop() -> None:
        try:
            await client.close()
        finally:
            loop.stop()

    asyncio.run_coroutine_threadsafe(close_and_stop(), loop)
    if thread is not threading.current_thread():
        thread.join(_CLOSE_S)
