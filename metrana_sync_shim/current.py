"""The module-level functions: the blocking twins of `metrana_async.current`, one line each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from metrana_async import current
from metrana_async.handle import ASK_TIMEOUT_S, FLUSH_TIMEOUT_S
from metrana_async.run import open_run
from metrana_async.statistics import CloseInfo, Statistics
from metrana_sync_shim._wait import wait, wait_for, wait_for_close
from metrana_sync_shim.run import Run


def init(
    workspace_name: str | None = None,
    project_name: str | None = None,
    run_name: str | None = None,
    *,
    ingestion_url: str | None = None,
    resume_strategy: str | None = None,
    init_mode: str | None = None,
    orchestration_id: str | None = None,
    backpressure_strategy: str | None = None,
    delivery_policy: str | None = None,
    compression: str | None = None,
    log_level: str | None = None,
    api_key: str | None = None,
    logger_id: str | int | None = None,
    tags: Sequence[str] | None = None,
    description: str | None = None,
    config: Mapping[str, Any] | None = None,
    default_dtype: Any = None,
    disk: Any = "default",
    queue_capacity: int | None = None,
    init_timeout_secs: float | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    on_error: str | None = None,
    quiet: bool | None = None,
    redact: bool | None = None,
    transport: Any = None,
) -> Run:
    """Open a run and make it the current one; the result is the run and a context manager.

    Every argument is: argument > environment (``METRANA_…``) > default.

    Args:
        workspace_name: "default" unless given.
        project_name: needed.
        run_name: None = a readable generated name.
        ingestion_url: the server; None = this user's local server, found or started.
        resume_strategy: "never" (only this job may log to the run) or "allow".
        init_mode: "online" (the server must answer), "auto" (starts without it and attaches when
            it does), "offline" (never asks one), or "disabled" (every call validates and does
            nothing).
        orchestration_id: which job this process is part of; None = resolved from the launcher.
        backpressure_strategy: "block", "drop_new", "raise" or "spool_then_raise": what a call does
            that finds memory full, because neither server nor disk keep up.
        delivery_policy: "tolerate_loss" or "all_or_crash" (a loss raises DataLossError).
        compression: of batches, "none" or "zstd".
        log_level: of the logger ``metrana_async``.
        api_key: bearer token.
        logger_id: the logical writer this process is an incarnation of.
        tags: applied by the run's creator only, as are `description` and `config`.
        description: what the run is about.
        config: nested configuration, kept under ``config/``.
        default_dtype: of values, "float32" unless given.
        disk: where the run keeps what it cannot deliver: a path or a `DiskConfig`; "default" =
            beside the local server's store, where that works; None = nowhere.
        queue_capacity: points that may wait in the inbox.
        init_timeout_secs: how long the handshake may take.
        data_dir: where the local server keeps its store.
        on_error: "raise", or "warn" to count the caller's mistakes instead of raising.
        quiet: say nothing on stderr.
        redact: False stores attributes as they are; by default what looks like a secret becomes
            ``***`` before it leaves the process.
        transport: carries requests instead of HTTP, e.g. `testing.MemoryServer.transport()`.

    Raises:
        InitError, ValidationError: an argument is not acceptable, or no server answered in time.
        RunAlreadyExistsError: another job owns the run.
    """
    arguments = {
        "workspace_name": workspace_name,
        "project_name": project_name,
        "run_name": run_name,
        "ingestion_url": ingestion_url,
        "resume_strategy": resume_strategy,
        "init_mode": init_mode,
        "orchestration_id": orchestration_id,
        "backpressure_strategy": backpressure_strategy,
        "delivery_policy": delivery_policy,
        "compression": compression,
        "log_level": log_level,
        "api_key": api_key,
        "logger_id": logger_id,
        "tags": tags,
        "description": description,
        "config": config,
        "default_dtype": default_dtype,
        "disk": disk,
        "queue_capacity": queue_capacity,
        "init_timeout_secs": init_timeout_secs,
        "data_dir": data_dir,
        "on_error": on_error,
        "quiet": quiet,
        "redact": redact,
    }
    opening = open_run(arguments, transport=transport, on_open=current.set_current)
    writer = wait_for(opening.begin(), opening.settings.init_timeout_secs)
    return Run(opening.finish(writer, is_blocking=True))


def current_run() -> Run:
    """The current run; NotInitializedError when there is none."""
    return Run(current.current_run())


def is_initialized() -> bool:
    """Whether there is a current run that takes calls."""
    return current.is_initialized()


def get_metrics() -> Statistics:
    """The loss ledger and the counters of the current run; see `Run.get_metrics`."""
    return current.any_run().get_metrics()


def log(
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
        current.current_run().log(
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
        current.current_run().log_distributed(
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
        current.current_run().log_rl_episode(
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
        current.current_run().log_rl_environment_step(
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
    config: Any,
) -> None:
    """Set configuration attributes under ``config/``; nested mappings join with ``/``."""
    wait(current.current_run().log_config(config))


def log_attributes(
    prefix_path: str,
    value: Any,
) -> None:
    """Set run attributes under `prefix_path`: one per leaf of `value`."""
    wait(current.current_run().log_attributes(prefix_path, value))


def log_env_attributes(
    env_id: str,
    value: Any,
    episode: int | None = None,
) -> None:
    """Set attributes of one environment, or of one of its episodes."""
    wait(current.current_run().log_env_attributes(env_id, value, episode))


def set_tags(
    tags: Sequence[str],
) -> None:
    """Replace the run's tags."""
    wait(current.current_run().set_tags(tags))


def add_tags(
    tags: Sequence[str],
) -> None:
    """Add tags to the run's."""
    wait(current.current_run().add_tags(tags))


def remove_tags(
    tags: Sequence[str],
) -> None:
    """Remove tags from the run's."""
    wait(current.current_run().remove_tags(tags))


def set_description(
    description: str,
) -> None:
    """Set the run's description; "" clears it."""
    wait(current.current_run().set_description(description))


def get_last_step(
    metric_name: str,
    scale: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> int | None:
    """Highest step of a standard series: the server's at `init`, or logged here since."""
    return wait_for(
        current.current_run().begin_last_step(metric_name, scale, labels), ASK_TIMEOUT_S
    )


def get_env_last_rl_step_and_episode(
    env_id: str,
) -> tuple[int | None, int | None]:
    """Highest rl_step and highest episode of an environment, over both RL functions."""
    return wait_for(current.current_run().begin_last_rl_step(env_id), ASK_TIMEOUT_S)


def reserve_episodes(
    env_id: str,
    n: int,
) -> int:
    """Lease the next `n` episode numbers of an environment; see `Run.reserve_episodes`."""
    return wait_for(current.current_run().begin_reserve_episodes(env_id, n), ASK_TIMEOUT_S)


def flush(
    timeout_secs: float = FLUSH_TIMEOUT_S,
) -> Statistics:
    """Wait until everything logged before is stored by the server; see `Run.flush`."""
    return wait_for(current.current_run().begin_flush(timeout_secs), timeout_secs)


def failover_to_spool(
    timeout_secs: float = FLUSH_TIMEOUT_S,
) -> Statistics:
    """Have everything logged before on this machine's disk now, whatever the server does."""
    return wait_for(current.current_run().begin_failover(timeout_secs), timeout_secs)


def close(
    close_timeout: float = FLUSH_TIMEOUT_S,
) -> CloseInfo:
    """Flush, end this writer, and the run with its last writer. Idempotent."""
    return wait_for_close(current.any_run().begin_close(close_timeout), close_timeout)


def shutdown_logger(
    close_timeout: float = FLUSH_TIMEOUT_S,
) -> CloseInfo:
    """Like `close`, but the run stays open for a resume."""
    return wait_for_close(
        current.any_run().begin_close(close_timeout, is_run_over=False), close_timeout
    )
