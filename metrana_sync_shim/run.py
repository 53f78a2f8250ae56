"""Run: the blocking twin of `metrana_async.Run`. Every method is one line over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from metrana_async.handle import ASK_TIMEOUT_S, FLUSH_TIMEOUT_S
from metrana_async.run import Run as AsyncRun
from metrana_async.settings import Settings
from metrana_async.statistics import CloseInfo, Statistics
from metrana_sync_shim._wait import wait, wait_for, wait_for_close


class Run:
    """One training attempt, as this process logs to it. Made by `init`. Thread-safe."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run

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
    ) -> None:
        """Record points of an ordered metric: one writer, its call order is the order.

        Arguments and errors: see `metrana_async.Run.log`.
        """
        wait(
            self._run.log(
                metric_name,
                value,
                step=step,
                timestamp=timestamp,
                scale=scale,
                labels=labels,
                evaluation=evaluation,
                dtype=dtype,
            )
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
    ) -> None:
        """Record points of a merge metric: many writers, any order, an explicit step.

        Arguments and errors: see `metrana_async.Run.log_distributed`.
        """
        wait(
            self._run.log_distributed(
                metric_name,
                value,
                step=step,
                timestamp=timestamp,
                scale=scale,
                labels=labels,
                evaluation=evaluation,
                dtype=dtype,
            )
        )

    def log_rl_episode(  # noqa: PLR0917 - the specification's signature
        self,
        metric_name: str,
        value: Any,
        rl_step: Any,
        episode: Any = None,
        env_id: Any = None,
        labels: Mapping[str, str] | None = None,
        evaluation: bool | None = False,  # noqa: FBT001, FBT002 - as specified
        dtype: Any = None,
        *,
        timestamp: Any = None,
    ) -> None:
        """Record one value per finished episode on the EPISODE scale.

        Arguments and errors: see `metrana_async.Run.log_rl_episode`.
        """
        wait(
            self._run.log_rl_episode(
                metric_name,
                value,
                rl_step,
                episode=episode,
                env_id=env_id,
                labels=labels,
                evaluation=evaluation,
                dtype=dtype,
                timestamp=timestamp,
            )
        )

    def log_rl_environment_step(  # noqa: PLR0917 - the specification's signature
        self,
        metric_name: str,
        value: Any,
        rl_step: Any,
        env_id: Any = None,
        episode: Any = None,
        env_step: Any = None,
        auto_start_from_one: bool = False,  # noqa: FBT001, FBT002 - as specified
        labels: Mapping[str, str] | None = None,
        evaluation: bool | None = False,  # noqa: FBT001, FBT002 - as specified
        dtype: Any = None,
        *,
        mask: Any = None,
        layout: str = "MT",
        timestamp: Any = None,
    ) -> None:
        """Record one rollout block on the ENVIRONMENT_STEP scale.

        Arguments and errors: see `metrana_async.Run.log_rl_environment_step`.
        """
        wait(
            self._run.log_rl_environment_step(
                metric_name,
                value,
                rl_step,
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
        )

    def log_config(
        self,
        config: Any,
    ) -> None:
        """Set configuration attributes under ``config/``; nested mappings join with ``/``."""
        wait(self._run.log_config(config))

    def log_attributes(
        self,
        prefix_path: str,
        value: Any,
    ) -> None:
        """Set run attributes under `prefix_path`: one per leaf of `value`."""
        wait(self._run.log_attributes(prefix_path, value))

    def log_env_attributes(
        self,
        env_id: str,
        value: Any,
        episode: int | None = None,
    ) -> None:
        """Set attributes of one environment, or of one of its episodes."""
        wait(self._run.log_env_attributes(env_id, value, episode))

    def set_tags(
        self,
        tags: Sequence[str],
    ) -> None:
        """Replace the run's tags."""
        wait(self._run.set_tags(tags))

    def add_tags(
        self,
        tags: Sequence[str],
    ) -> None:
        """Add tags to the run's."""
        wait(self._run.add_tags(tags))

    def remove_tags(
        self,
        tags: Sequence[str],
    ) -> None:
        """Remove tags from the run's."""
        wait(self._run.remove_tags(tags))

    def set_description(
        self,
        description: str,
    ) -> None:
        """Set the run's description; "" clears it."""
        wait(self._run.set_description(description))

    def get_last_step(
        self,
        metric_name: str,
        scale: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> int | None:
        """Highest step of a standard series: the server's at `init`, or logged here since."""
        return wait_for(self._run.begin_last_step(metric_name, scale, labels), ASK_TIMEOUT_S)

    def get_env_last_rl_step_and_episode(
        self,
        env_id: str,
    ) -> tuple[int | None, int | None]:
        """Highest rl_step and highest episode of an environment, over both RL functions."""
        return wait_for(self._run.begin_last_rl_step(env_id), ASK_TIMEOUT_S)

    def reserve_episodes(
        self,
        env_id: str,
        n: int,
    ) -> int:
        """Lease the next `n` episode numbers of an environment; returns the first of them.

        Guarantees and errors: see `metrana_async.Run.reserve_episodes`.
        """
        return wait_for(self._run.begin_reserve_episodes(env_id, n), ASK_TIMEOUT_S)

    def flush(
        self,
        timeout_secs: float = FLUSH_TIMEOUT_S,
    ) -> Statistics:
        """Wait until everything logged before is stored by the server."""
        return wait_for(self._run.begin_flush(timeout_secs), timeout_secs)

    def failover_to_spool(
        self,
        timeout_secs: float = FLUSH_TIMEOUT_S,
    ) -> Statistics:
        """Have everything logged before on this machine's disk now, whatever the server does."""
        return wait_for(self._run.begin_failover(timeout_secs), timeout_secs)

    def close(
        self,
        close_timeout: float = FLUSH_TIMEOUT_S,
    ) -> CloseInfo:
        """Flush, end this writer, and the run with its last writer. Idempotent."""
        return wait_for_close(self._run.begin_close(close_timeout), close_timeout)

    def shutdown_logger(
        self,
        close_timeout: float = FLUSH_TIMEOUT_S,
    ) -> CloseInfo:
        """Like `close`, but the run stays open for a resume."""
        return wait_for_close(
            self._run.begin_close(close_timeout, is_run_over=False), close_timeout
        )

    def get_metrics(self) -> Statistics:
        """The loss ledger and the counters, now; balanced at every quiescent moment."""
        return self._run.get_metrics()

    def is_initialized(self) -> bool:
        """Whether calls are taken: opened and not closed."""
        return self._run.is_initialized()

    @property
    def name(self) -> str:
        """The run's name, generated by the server where none was given."""
        return self._run.name

    @property
    def settings(self) -> Settings:
        """What `init` decided."""
        return self._run.settings

    @property
    def is_closed(self) -> bool:
        """Whether this handle was closed."""
        return self._run.is_closed

    @property
    def notices(self) -> list[Any]:
        """What the server and the client had to say, oldest first."""
        return list(self._run.notices)

    def __enter__(self) -> Run:
        """Enter; the run is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; an exception that leaves makes the run failed, an interrupt stopped."""
        wait_for_close(self._run.begin_close(FLUSH_TIMEOUT_S, ended_by=error), FLUSH_TIMEOUT_S)

    def __repr__(self) -> str:
        return repr(self._run)
