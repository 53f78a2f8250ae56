"""Run: what training code holds. The async surface over `front.Front`.

Every logging call does its work at the call and returns an awaitable that only carries
backpressure (see `waiting`). `flush`, `close` and the questions are coroutines. A run may be used
from any thread and any event loop, asyncio or trio, and pickles to a handle that joins it again.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator, Mapping, Sequence
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from metrana_async.columns.attributes import config_updates, description_update, tags_update
from metrana_async.columns.names import check_env_id
from metrana_async.errors import InitError, RunClosedError
from metrana_async.front import Front, Reconnect, joining
from metrana_async.handle import ASK_TIMEOUT_S, FLUSH_TIMEOUT_S, Handle
from metrana_async.settings import Settings, resolve_settings
from metrana_async.statistics import CloseInfo, Statistics
from metrana_async.transport.base import Transport
from metrana_async.waiting import READY, Pending, arrive
from metrana_async.wire.model import AttributeOp

if TYPE_CHECKING:
    from metrana_async.writer import Writer

_STEP_FAR: Final = 2**62
_FLOAT32_SAFE: Final = 3.4e38
_EXACT_INT_MAX: Final = 2**53
_NUMPY_FLOATS: Final = frozenset({np.float16, np.float32, np.float64})


class Run(Handle):
    """One training attempt, as this process logs to it. Made by `init`. Thread-safe."""

    # --- standard metrics ----------------------------------------------------------------------
    def log(
        self,
        metric_name: str | Mapping[str, Any],
        value: Any = None,
        *,
        step: Any = None,
        timestamp: Any = None,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
        evaluation: bool | None = None,
        dtype: Any = None,
    ) -> Pending:
        """Record points of an ordered metric: one writer, its call order is the order.

        The points are in the inbox, copied, when this returns; `flush()` reports delivery.

        Args:
            metric_name: name, or a mapping of names to values (nested ones join with ``/``);
                a mapping is logged as a whole or not at all.
            value: float, int, bool, or [n]; stored as float32 (ints as float64). NaN is kept.
            step: None = the next numbers of the series; k = k..k+n-1; or [n].
            timestamp: Unix ms, one or [n]; None = now.
            scale: what the steps count; ML_STEP by default.
            labels: at most 16 pairs of str.
            evaluation: True adds the label ``evaluation=true``.
            dtype: float16, float32, float64, int32 or int64.

        Raises:
            ValidationError: a name, shape, type, step or pin; nothing of the call was logged.
            QueueFullError: no room, under the policy in force.
            RunClosedError: the run was closed.

        Thread-safe. Never waits for network or disk; awaiting waits for room under BLOCK.
        """
        front = self._front
        if (
            timestamp is None
            and scale is None
            and labels is None
            and evaluation is None
            and dtype is None
        ):
            kind = type(value)
            # The shortest way: a known metric, a plain number, at most an int as step.
            if (kind is float and -_FLOAT32_SAFE < value < _FLOAT32_SAFE) or (
                kind is int and -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX
            ):
                series_no = front.plain.get(metric_name) if type(metric_name) is str else None
                if series_no is not None:
                    inbox = front.inbox
                    items = inbox.items
                    number = -1 if step is None else step
                    if (
                        len(items) < inbox.scalars_max
                        and type(number) is int
                        and (step is None or 0 <= number < _STEP_FAR)
                    ):
                        item = (series_no, number, time_ns() // 1_000_000, value)
                        items.append(item)
                        if inbox.is_armed:
                            inbox.wake_for(item)
                        return READY
            elif kind in _NUMPY_FLOATS:
                return self.log(metric_name, float(value), step=step)
            elif value is None and type(metric_name) is dict:
                pending = front.log_scalars(metric_name, step)
                if pending is not None:
                    return pending
        return front.guarded(
            front.log_ordered,
            metric_name=metric_name,
            value=value,
            step=step,
            timestamp=timestamp,
            scale=scale,
            labels=labels,
            evaluation=evaluation,
            dtype=dtype,
        )

    def log_distributed(
        self,
        metric_name: str | Mapping[str, Any],
        value: Any = None,
        *,
        step: Any = None,
        timestamp: Any = None,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
        evaluation: bool | None = None,
        dtype: Any = None,
    ) -> Pending:
        """Record points of a merge metric: many writers, any order, an explicit step.

        Per step the store keeps min, max, first, last and count over all writers. Arguments and
        errors are those of `log`, except that `step` is needed.

        Raises:
            InvalidTypeError: no `step`; also everything that `log` raises.
        """
        front = self._front
        return front.guarded(
            front.log_merge,
            metric_name=metric_name,
            value=value,
            step=step,
            timestamp=timestamp,
            scale=scale,
            labels=labels,
            evaluation=evaluation,
            dtype=dtype,
        )

    # --- RL metrics ----------------------------------------------------------------------------
    def log_rl_episode(  # noqa: PLR0917 - the specification's signature
        self,
        metric_name: str,
        value: Any,
        rl_step: Any,
        episode: Any = None,
        env_id: Any = None,
        labels: Mapping[str, str] | None = None,
        evaluation: bool | None = False,  # noqa: FBT001, FBT002 - the specification's signature
        dtype: Any = None,
        *,
        timestamp: Any = None,
    ) -> Pending:
        """Record one value per finished episode on the EPISODE scale.

        Args:
            metric_name: name of the metric.
            value: scalar or [N]; stored as float32 (ints as float64).
            rl_step: training update, >= 0; one or [N].
            episode: None = the next episode of each environment (ordered); one number or [N] =
                that episode (merge: writers own disjoint episodes, order does not matter).
            env_id: None (``default``), one id, or N ids, which may repeat.
            labels: at most 16 pairs of str.
            evaluation: True adds the label ``evaluation=true``.
            dtype: see `log`.
            timestamp: Unix ms, one or [N]; None = now.

        Raises:
            ValidationError: an argument is not acceptable; nothing was logged.
            QueueFullError: no room, under the policy in force.
        """
        front = self._front
        return front.guarded(
            front.log_episode,
            metric_name=metric_name,
            value=value,
            rl_step=rl_step,
            episode=episode,
            env_id=env_id,
            labels=labels,
            evaluation=evaluation,
            dtype=dtype,
            timestamp=timestamp,
        )

    def log_rl_environment_step(  # noqa: PLR0917 - the specification's signature
        self,
        metric_name: str,
        value: Any,
        rl_step: Any,
        env_id: Any = None,
        episode: Any = None,
        env_step: Any = None,
        auto_start_from_one: bool = False,  # noqa: FBT001, FBT002 - the specification's signature
        labels: Mapping[str, str] | None = None,
        evaluation: bool | None = False,  # noqa: FBT001, FBT002 - the specification's signature
        dtype: Any = None,
        *,
        mask: Any = None,
        layout: str = "MT",
        timestamp: Any = None,
    ) -> Pending:
        """Record one rollout block on the ENVIRONMENT_STEP scale.

        Args:
            metric_name: name of the metric.
            value: scalar, [T], [M] or [M, T] (M environments, T env steps); stored as float32
                (ints as float64).
            rl_step: training update, >= 0; should not decrease.
            env_id: None (``default``), one id, or M distinct ids.
            episode: scalar, [M] or [M, T] ([T] for one environment); None = no episodes.
            env_step: None = numbered by the server; scalar or [M] = start of each segment;
                [M, T] ([T] for one environment) = exact.
            auto_start_from_one: number an episode's automatic steps from 1 instead of 0.
            labels: at most 16 pairs of str.
            evaluation: True adds the label ``evaluation=true``.
            dtype: see `log`.
            mask: bool, the shape of `value`; False = not a transition, the cell does not exist.
            layout: "MT", or "TM" where two-dimensional arguments are time-major.
            timestamp: Unix ms, scalar, [M] or [M, T]; None = now.

        Raises:
            InvalidShapeError: `value` does not have one row per entry of `env_id`.
            ValidationError: an argument is not acceptable; nothing was logged.
            QueueFullError: no room, under the policy in force.
        """
        front = self._front
        return front.guarded(
            front.log_grid,
            metric_name=metric_name,
            value=value,
            rl_step=rl_step,
            env_id=env_id,
            episode=episode,
            env_step=env_step,
            auto_start_from_one=auto_start_from_one,
            labels=labels,
            evaluation=evaluation,
            dtype=dtype,
            mask=mask,
            layout=layout,
            timestamp=timestamp,
        )

    # --- attributes ----------------------------------------------------------------------------
    def log_config(self, config: Any) -> Pending:
        """Set configuration attributes under ``config/``; nested mappings join with ``/``."""
        return self._log_updates(lambda: config_updates("config", config))

    def log_attributes(self, prefix_path: str, value: Any) -> Pending:
        """Set run attributes under `prefix_path`: one per leaf of `value`."""
        return self._log_updates(lambda: config_updates(prefix_path, value))

    def log_env_attributes(self, env_id: str, value: Any, episode: int | None = None) -> Pending:
        """Set attributes of one environment, or of one of its episodes."""
        return self._log_updates(
            lambda: config_updates("", value, env_id=check_env_id(env_id), episode=episode)
        )

    def set_tags(self, tags: Sequence[str]) -> Pending:
        """Replace the run's tags."""
        return self._log_updates(lambda: [tags_update(AttributeOp.TAGS_SET, tags)])

    def add_tags(self, tags: Sequence[str]) -> Pending:
        """Add tags to the run's."""
        return self._log_updates(lambda: [tags_update(AttributeOp.TAGS_ADD, tags)])

    def remove_tags(self, tags: Sequence[str]) -> Pending:
        """Remove tags from the run's."""
        return self._log_updates(lambda: [tags_update(AttributeOp.TAGS_REMOVE, tags)])

    def set_description(self, description: str) -> Pending:
        """Set the run's description; "" clears it."""
        return self._log_updates(lambda: [description_update(description)])

    def _log_updates(self, make: Callable[[], Any]) -> Pending:
        front = self._front
        return front.guarded(lambda: front.log_updates(make()))

    # --- questions -----------------------------------------------------------------------------
    async def get_last_step(
        self,
        metric_name: str,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> int | None:
        """Highest step of a standard series: the server's at `init`, or logged here since."""
        return await arrive(self.begin_last_step(metric_name, scale, labels), ASK_TIMEOUT_S)

    async def get_env_last_rl_step_and_episode(self, env_id: str) -> tuple[int | None, int | None]:
        """Highest rl_step and highest episode of an environment, over both RL functions."""
        return await arrive(self.begin_last_rl_step(env_id), ASK_TIMEOUT_S)

    async def reserve_episodes(self, env_id: str, n: int) -> int:
        """Lease the next `n` episode numbers of an environment; returns the first of them.

        For workers that share an environment: no other lease, of whatever process and after
        whatever restart, holds one of ``first .. first + n - 1``, and no stored episode is among
        them. Numbers that are not used stay unused. See `EpisodeLeases`.

        Raises:
            UnavailableError: no server has admitted this run yet (offline), or none answers.
            ValidationError: `env_id` is no id, or `n` not in 1..2**32.

        Cancel-safe: at most a lease stays unused.
        """
        return await arrive(self.begin_reserve_episodes(env_id, n), ASK_TIMEOUT_S)

    # --- flush and close -----------------------------------------------------------------------
    async def flush(self, timeout_secs: float = FLUSH_TIMEOUT_S) -> Statistics:
        """Wait until everything logged before is stored by the server.

        Offline, and while the server does not answer, until it is on this machine's disk for
        good: then the result's `spooled` is not 0.

        Raises:
            WaitTimeoutError: it is neither, after `timeout_secs`; nothing is lost by that.
            DataLossError: under ``all_or_crash``, something was lost or rejected.

        Cancel-safe: cancelling stops the wait only.
        """
        return await arrive(self.begin_flush(timeout_secs), timeout_secs)

    async def failover_to_spool(self, timeout_secs: float = FLUSH_TIMEOUT_S) -> Statistics:
        """Have everything logged before on this machine's disk now, whatever the server does.

        Sending goes on as before; what the server stores is removed from the disk. For the
        moment before a machine is taken away, or a network that is about to go.

        Raises:
            ValidationError: the run has no disk spool.
            WaitTimeoutError: the disk did not take it within `timeout_secs`.
        """
        return await arrive(self.begin_failover(timeout_secs), timeout_secs)

    async def close(self, close_timeout: float = FLUSH_TIMEOUT_S) -> CloseInfo:
        """Flush, end this writer, and the run with its last writer. Idempotent.

        Never takes longer than `close_timeout` and half a second. What is not stored by then is
        kept on this machine's disk, for the next program or `replay_spool` to deliver; without a
        spool it is lost. Either is counted and told in the result.

        Raises:
            DataLossError: under ``all_or_crash``, something was lost or rejected.

        Cancel-safe: closing goes on.
        """
        return await self._closed(self.begin_close(close_timeout), close_timeout)

    async def shutdown_logger(self, close_timeout: float = FLUSH_TIMEOUT_S) -> CloseInfo:
        """Like `close`, but the run stays open (``running``) for a resume."""
        future = self.begin_close(close_timeout, is_run_over=False)
        return await self._closed(future, close_timeout)

    async def __aenter__(self) -> Run:
        """Enter; the run is open already."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; an exception that leaves makes the run failed, an interrupt stopped."""
        future = self.begin_close(FLUSH_TIMEOUT_S, ended_by=error)
        await self._closed(future, FLUSH_TIMEOUT_S)

    @staticmethod
    async def _closed(future: concurrent.futures.Future[CloseInfo], timeout_s: float) -> CloseInfo:
        try:
            return await arrive(future, timeout_s)
        finally:
            joining().after_close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle to a handle that joins the run again: no secret and no socket inside."""
        return _rejoin, (self._front.reconnect_info(),)


def _rejoin(info: Reconnect) -> Run:
    return Run(Front.from_reconnect(info, is_blocking=False))


class Opening:
    """A run being opened: await it, or enter it with ``async with``. Use once."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport | None,
        on_open: Callable[[Run], None],
    ) -> None:
        self.settings: Settings = joining().prepare(settings)
        self._transport = transport
        self._on_open = on_open
        self._run: Run | None = None

    def begin(self) -> concurrent.futures.Future[Writer]:
        """Start the handshake."""
        future: concurrent.futures.Future[Writer] = joining().submit_open(
            self.settings, self._transport
        )
        return future

    def finish(self, writer: Writer, *, is_blocking: bool = False) -> Run:
        """Make the run's handle once the handshake is done, and say where the run is."""
        if not self.settings.quiet:
            joining().announce(writer)
        self._run = Run(Front(writer, is_blocking=is_blocking))
        self._on_open(self._run)
        return self._run

    def __getattr__(self, name: str) -> Any:
        """Say what is missing when an opening is used as if it were the run."""
        raise AttributeError(
            f"init() returned an opening, which has no {name!r}: the run is not open yet; write "
            "`run = await init(…)` or `async with init(…) as run:`"
        )

    async def _open(self) -> Run:
        timeout_s = self.settings.init_timeout_secs
        return self.finish(await arrive(self.begin(), timeout_s))

    def __await__(self) -> Generator[Any, Any, Run]:
        """Open the run."""
        return self._open().__await__()

    async def __aenter__(self) -> Run:
        """Open the run."""
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the run; see `Run.__aexit__`."""
        if self._run is None:
            raise RunClosedError("this run was never opened")
        await self._run.__aexit__(kind, error, trace)


def open_run(
    arguments: dict[str, Any],
    *,
    transport: Transport | None,
    on_open: Callable[[Run], None],
) -> Opening:
    """Resolve `init`'s arguments; nothing is started before the result is awaited.

    Raises:
        InitError, ValidationError: an argument or variable is not acceptable.
    """
    if transport is not None and arguments.get("ingestion_url"):
        raise InitError("init() takes ingestion_url= or transport=, not both")
    return Opening(resolve_settings(**arguments), transport, on_open)
