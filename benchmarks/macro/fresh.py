"""What `start` measures, each in a process that begins for it: ``-m benchmarks.macro.fresh TASK``.

The shim is imported inside the tasks: what it brings in is part of what they measure.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.peers.workloads import rollouts
from benchmarks.processes import memory_mb

PROJECT = "start"
_PENDING_CALLS = 123  # of 8,192 points: a million
_IDLE_S = 2.0


def opens(data_dir: str) -> dict[str, float]:
    """Seconds of opening a new run, first in the process and then once more."""
    import metrana_sync_shim as metrana

    figures = {}
    for name in ("first_s", "second_s"):
        start_s = time.perf_counter()
        run = metrana.init(project_name=PROJECT, data_dir=data_dir, quiet=True)
        figures[name] = time.perf_counter() - start_s
        run.close()
    return figures


def joins(data_dir: str) -> dict[str, float]:
    """Seconds of joining the run of many series."""
    from benchmarks.macro import many_series

    start_s = time.perf_counter()
    run = many_series.opened(Path(data_dir))
    figures = {"join_s": time.perf_counter() - start_s}
    run.shutdown_logger()
    return figures


def idles(data_dir: str) -> dict[str, float]:
    """Megabytes that an open run adds to a process with numpy, after one point and a pause."""
    before_mb = memory_mb(os.getpid())
    import metrana_sync_shim as metrana

    run = metrana.init(project_name=PROJECT, data_dir=data_dir, quiet=True)
    run.log("loss", 0.5)
    run.flush()
    time.sleep(_IDLE_S)
    idle_mb = memory_mb(os.getpid()) - before_mb
    run.close()
    return {"idle_mb": idle_mb}


def closes(data_dir: str) -> dict[str, float]:
    """Seconds of a close with a million block points pending."""
    import metrana_sync_shim as metrana

    grids = rollouts(np.random.default_rng(0), _PENDING_CALLS, (64, 128))
    environments = [f"env{n}" for n in range(64)]
    run = metrana.init(project_name=PROJECT, data_dir=data_dir, quiet=True)
    start_s = time.perf_counter()
    for rl_step, (values, episodes) in enumerate(grids):
        run.log_rl_environment_step("reward", values, rl_step, environments, episode=episodes)
    logged_s = time.perf_counter()
    run.close()
    return {"log_s": logged_s - start_s, "close_s": time.perf_counter() - logged_s}


TASKS = {task.__name__: task for task in (opens, joins, idles, closes)}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](sys.argv[2])))
