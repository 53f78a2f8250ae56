"""The process-global current run behind the module-level functions.

`init` makes the run it opens the current one. Every function here is the method of the same name
on that run; see `run.Run` for arguments, guarantees and errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from metrana_async.errors import NotInitializedError
from metrana_async.handle import FLUSH_TIMEOUT_S
from metrana_async.run import Opening, Run, open_run
from metrana_async.statistics import CloseInfo, Statistics
from metrana_async.transport.base import Transport
from metrana_async.waiting import Pending

_current: Run | None = None


def current_run() -> Run:
    """The current run.

    Raises:
        NotInitializedError: there is none, or it was closed.
    """
    run = any_run()
    if run.is_closed:
        raise NotInitializedError(
            f"run {run.name!r} was closed and there is no other", hint="call init() again"
        )
    return run


def any_run() -> Run:
    """The current run, closed or not; NotInitializedError when there never was one."""
    if _current is None:
        raise NotInitializedError(
            "there is no current run", hint="call init() first (its async form must be awaited)"
        )
    return _current


def set_current(run: Run) -> None:
    """Make `run` the one that module-level functions use."""
    global _current
    _current = run


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
    transport: Transport | None = None,
) -> Opening:
    """Open a run and make it the current one; await the result or enter it with ``async with``.

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
        InitError, ValidationError: an argument is not acceptable (at the call), or no server
            answered in time (when awaited).
        RunAlreadyExistsError: another job owns the run (when awaited).
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
    return open_run(arguments, transport=transport, on_open=set_current)


def is_initialized() -> bool:
    """Whether there is a current run that takes calls."""
    return _current is not None and _current.is_initialized()


def get_metrics() -> Statistics:
    """The loss ledger and the counters of the current run; see `Run.get_metrics`."""
    return any_run().get_metrics()


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
) -> Pending:
    """Record points of an ordered metric: one writer, its call order is the order.

    Arguments and errors: see `metrana_async.Run.log`.
    """
    return current_run().log(
        metric_name,
        value,
        step=step,
        timestamp=timestamp,
        scale=scale,
        labels=labels,
        evaluation=evaluation,
        dtype=dtype,
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
) -> Pending:
    """Record points of a merge metric: many writers, any order, an explicit step.

    Arguments and errors: see `metrana_async.Run.log_distributed`.
    """
    return current_run().log_distributed(
        metric_name,
        value,
        step=step,
        timestamp=timestamp,
        scale=scale,
        labels=labels,
        evaluation=evaluation,
        dtype=dtype,
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
) -> Pending:
    """Record one value per finished episode on the EPISODE scale.

    Arguments and errors: see `metrana_async.Run.log_rl_episode`.
    """
    return current_run().log_rl_episode(
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
) -> Pending:
    """Record one rollout block on the ENVIRONMENT_STEP scale.

    Arguments and errors: see `metrana_async.Run.log_rl_environment_step`.
    """
    return current_run().log_rl_environment_step(
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


def log_config(
    config: Any,
) -> Pending:
    """Set configuration attributes under ``config/``; nested mappings join with ``/``."""
    return current_run().log_config(config)


def log_attributes(
    prefix_path: str,
    value: Any,
) -> Pending:
    """Set run attributes under `prefix_path`: one per leaf of `value`."""
    return current_run().log_attributes(prefix_path, value)


def log_env_attributes(
    env_id: str,
    value: Any,
    episode: int | None = None,
) -> Pending:
    """Set attributes of one environment, or of one of its episodes."""
    return current_run().log_env_attributes(env_id, value, episode)


def set_tags(
    tags: Sequence[str],
) -> Pending:
    """Replace the run's tags."""
    return current_run().set_tags(tags)


def add_tags(
    tags: Sequence[str],
) -> Pending:
    """Add tags to the run's."""
    return current_run().add_tags(tags)


def remove_tags(
    tags: Sequence[str],
) -> Pending:
    """Remove tags from the run's."""
    return current_run().remove_tags(tags)


def set_description(
    description: str,
) -> Pending:
    """Set the run's description; "" clears it."""
    return current_run().set_description(description)


async def get_last_step(
    metric_name: str,
    scale: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> int | None:
    """Highest step of a standard series: the server's at `init`, or logged here since."""
    return await current_run().get_last_step(metric_name, scale, labels)


async def get_env_last_rl_step_and_episode(
    env_id: str,
) -> tuple[int | None, int | None]:
    """Highest rl_step and highest episode of an environment, over both RL functions."""
    return await current_run().get_env_last_rl_step_and_episode(env_id)


async def reserve_episodes(
    env_id: str,
    n: int,
) -> int:
    """Lease the next `n` episode numbers of an environment; see `Run.reserve_episodes`."""
    return await current_run().reserve_episodes(env_id, n)


async def flush(
    timeout_secs: float = FLUSH_TIMEOUT_S,
) -> Statistics:
    """Wait until everything logged before is stored by the server; see `Run.flush`."""
    return await current_run().flush(timeout_secs)


async def failover_to_spool(
    timeout_secs: float = FLUSH_TIMEOUT_S,
) -> Statistics:
    """Have everything logged before on this machine's disk now, whatever the server does."""
    return await current_run().failover_to_spool(timeout_secs)


async def close(
    close_timeout: float = FLUSH_TIMEOUT_S,
) -> CloseInfo:
    """Flush, end this writer, and the run with its last writer. Idempotent."""
    return await any_run().close(close_timeout)


async def shutdown_logger(
    close_timeout: float = FLUSH_TIMEOUT_S,
) -> CloseInfo:
    """Like `close`, but the run stays open for a resume."""
    return await any_run().shutdown_logger(close_timeout)
