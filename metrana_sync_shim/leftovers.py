"""What lies on this machine's disk, delivered: the blocking twins."""

from __future__ import annotations

import os
from typing import Any

from metrana_async.leftovers import NO_LIMIT_S, begin_replay
from metrana_async.replay import ReplayReport
from metrana_async.settings import connection_defaults
from metrana_sync_shim._wait import wait_for


def replay_spool(
    spool_dir: str | os.PathLike[str] | None = None,
    *,
    workspace_name: str | None = None,
    project_name: str | None = None,
    run_name: str | None = None,
    rename_to: str | None = None,
    ingestion_url: str | None = None,
    api_key: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    timeout_secs: float = 60.0,
    retry_set_aside: bool = False,
    transport: Any = None,
) -> list[ReplayReport]:
    """Deliver what offline runs and dead processes left on disk, then remove it there.

    Arguments, result and errors: see `metrana_async.replay_spool`.
    """
    future = begin_replay(
        spool_dir,
        names=(workspace_name, project_name, run_name),
        rename_to=rename_to,
        server=connection_defaults(ingestion_url, api_key, data_dir),
        timeout_s=timeout_secs,
        is_retrying=retry_set_aside,
        transport=transport,
    )
    return wait_for(future, NO_LIMIT_S)


def follow_spool(
    spool_dir: str | os.PathLike[str] | None = None,
    *,
    workspace_name: str | None = None,
    project_name: str | None = None,
    run_name: str | None = None,
    ingestion_url: str | None = None,
    api_key: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    poll_interval_secs: float = 1.0,
    idle_timeout_secs: float | None = None,
    timeout_secs: float = 60.0,
    transport: Any = None,
) -> list[ReplayReport]:
    """Like `replay_spool`, and stay with writers that are at work until they have ended.

    Arguments, result and errors: see `metrana_async.follow_spool`.
    """
    future = begin_replay(
        spool_dir,
        names=(workspace_name, project_name, run_name),
        server=connection_defaults(ingestion_url, api_key, data_dir),
        timeout_s=timeout_secs,
        poll_s=poll_interval_secs,
        idle_timeout_s=idle_timeout_secs,
        transport=transport,
    )
    return wait_for(future, NO_LIMIT_S)
