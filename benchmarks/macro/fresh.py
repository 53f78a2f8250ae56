"""What `start` measures, each in a process that begins for it: ``-m benchmarks.macro.fresh TASK``.

The shim is imported inside the tasks: what it brings in is part of what they measure.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.peers.workloads import rollouts
from benchmarks.processes import memory_mb

PROJECT = "start"
_PENDING_CALLS = 123  # of 8,192 points: a million
_IDLE_S = 2.0


@contextmanager
def _timed(figures: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of the block, and this process's seconds of CPU."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    yield
    figures[f"{name}_s"] = time.perf_counter() - start_s
    figures[f"{name}_cpu_s"] = time.process_time() - start_cpu_s


def opens(data_dir: str) -> dict[str, float]:
    """Importing the shim, opening a new run, first in the process, and opening another."""
    figures: dict[str, float] = {}
    with _timed(figures, "import"):
        import metrana_sync_shim as metrana
    for name in ("first", "second"):
        with _timed(figures, name):
            run = metrana.init(project_name=PROJECT, data_dir=data_dir, quiet=True)
        run.close()
    return figures


def joins(data_dir: str) -> dict[str, float]:
    """Joining the run of many series, with the modules loaded."""
    from benchmarks.macro import many_series

    figures: dict[str, float] = {}
    with _timed(figures, "join"):
        run = many_series.opened(Path(data_dir))
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
    """Logging a million block points, and closing with them pending."""
    import metrana_sync_shim as metrana

    grids = rollouts(np.random.default_rng(0), _PENDING_CALLS, (64, 128))
    environments = [f"env{n}" for n in range(64)]
    run = metrana.init(project_name=PROJECT, data_dir=data_dir, quiet=True)
    figures: dict[str, float] = {}
    with _timed(figures, "log"):
        for rl_step, (values, episodes) in enumerate(grids):
            run.log_rl_environment_step("reward", values, rl_step, environments, episode=episodes)
    with _timed(figures, "close"):
        run.close()
    return figures


TASKS = {task.__name__: task for task in (opens, joins, idles, closes)}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](sys.argv[2])))
