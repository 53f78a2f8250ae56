"""Async-first logging of reinforcement-learning and machine-learning metrics.

::

    import metrana_async as metrana

    async with metrana.init(project_name="proj", run_name="rl-001") as run:
        await run.log("loss", 0.5)
        await run.flush()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrana_async import errors
from metrana_async.current import (
    add_tags,
    close,
    current_run,
    failover_to_spool,
    flush,
    get_env_last_rl_step_and_episode,
    get_last_step,
    get_metrics,
    init,
    is_initialized,
    log,
    log_attributes,
    log_config,
    log_distributed,
    log_env_attributes,
    log_rl_environment_step,
    log_rl_episode,
    remove_tags,
    reserve_episodes,
    set_description,
    set_tags,
    shutdown_logger,
)
from metrana_async.errors import (
    AuthError,
    BatchTooLargeError,
    ConnectError,
    DataLossError,
    DuplicateStep,
    EpisodeRestarted,
    EpisodeTakenOver,
    InitError,
    InternalError,
    InvalidNameError,
    InvalidQueryError,
    InvalidShapeError,
    InvalidStepError,
    InvalidTypeError,
    InvalidValueError,
    MetranaError,
    MetranaWarning,
    NotFoundError,
    NotInitializedError,
    PinConflict,
    PinConflictError,
    PointsLost,
    ProtocolError,
    QueueFullError,
    RateLimitedError,
    RejectedError,
    RlStepDecreased,
    RunAlreadyExistsError,
    RunClosedError,
    RunDeletedError,
    SecondWriter,
    SpoolWarning,
    TransportError,
    UnavailableError,
    UnsupportedAggregationError,
    UsageError,
    ValidationError,
    ValueWidened,
    WaitTimeoutError,
)
from metrana_async.run import Run
from metrana_async.settings import DiskConfig
from metrana_async.statistics import CloseInfo, Statistics

if TYPE_CHECKING:
    from metrana_async.leftovers import follow_spool, replay_spool
    from metrana_async.query import BlockingQueryClient, Episode, F, Latest, QueryClient, RLStep
    from metrana_async.replay import ReplayReport
    from metrana_async.rl import (
        Autoreset,
        EndedEpisodes,
        EpisodeAllocator,
        EpisodeBlock,
        EpisodeKeys,
        EpisodeLeases,
        EpisodeTracker,
    )

__all__ = [
    "AuthError",
    "Autoreset",
    "BatchTooLargeError",
    "BlockingQueryClient",
    "CloseInfo",
    "ConnectError",
    "DataLossError",
    "DiskConfig",
    "DuplicateStep",
    "EndedEpisodes",
    "Episode",
    "EpisodeAllocator",
    "EpisodeBlock",
    "EpisodeKeys",
    "EpisodeLeases",
    "EpisodeRestarted",
    "EpisodeTakenOver",
    "EpisodeTracker",
    "F",
    "InitError",
    "InternalError",
    "InvalidNameError",
    "InvalidQueryError",
    "InvalidShapeError",
    "InvalidStepError",
    "InvalidTypeError",
    "InvalidValueError",
    "Latest",
    "MetranaError",
    "MetranaWarning",
    "NotFoundError",
    "NotInitializedError",
    "PinConflict",
    "PinConflictError",
    "PointsLost",
    "ProtocolError",
    "QueryClient",
    "QueueFullError",
    "RLStep",
    "RateLimitedError",
    "RejectedError",
    "ReplayReport",
    "RlStepDecreased",
    "Run",
    "RunAlreadyExistsError",
    "RunClosedError",
    "RunDeletedError",
    "SecondWriter",
    "SpoolWarning",
    "Statistics",
    "TransportError",
    "UnavailableError",
    "UnsupportedAggregationError",
    "UsageError",
    "ValidationError",
    "ValueWidened",
    "WaitTimeoutError",
    "add_tags",
    "close",
    "current_run",
    "errors",
    "failover_to_spool",
    "flush",
    "follow_spool",
    "get_env_last_rl_step_and_episode",
    "get_last_step",
    "get_metrics",
    "init",
    "is_initialized",
    "log",
    "log_attributes",
    "log_config",
    "log_distributed",
    "log_env_attributes",
    "log_rl_environment_step",
    "log_rl_episode",
    "remove_tags",
    "replay_spool",
    "reserve_episodes",
    "set_description",
    "set_tags",
    "shutdown_logger",
]


def __getattr__(name: str) -> Any:
    """Load readers and deliverers on first use: training code does not pay for them."""
    if name in {"QueryClient", "BlockingQueryClient", "F", "Latest", "RLStep", "Episode"}:
        from metrana_async import query

        return getattr(query, name)
    if name in {"follow_spool", "replay_spool"}:
        from metrana_async import leftovers

        return getattr(leftovers, name)
    if name in {
        "Autoreset",
        "EndedEpisodes",
        "EpisodeAllocator",
        "EpisodeBlock",
        "EpisodeKeys",
        "EpisodeLeases",
        "EpisodeTracker",
    }:
        from metrana_async import rl

        return getattr(rl, name)
    if name == "ReplayReport":
        from metrana_async.replay import ReplayReport

        return ReplayReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
