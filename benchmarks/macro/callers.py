"""What does a call cost its caller: in CPU, and in the time a caller loses now and then?

Expected orders: a scalar about a microsecond, a dict of 20 about ten, a 64x128 block tens, a
1,024x1 block tens. Tails are another matter: the engine's thread takes turns with the caller's.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import metrana_async
import metrana_sync_shim as metrana
from benchmarks.peers.workloads import rollouts
from benchmarks.rows import APPEND, COPY, Row

REPEATS = 5
_GRIDS, _TALL, _WIDE_ROWS = 2_600, 60, 4_096
_ASYNC_ROUNDS, _ASYNC_CALLS = 25, 2_000
_TAIL_CALLS, _TAIL_PACED_CALLS, _PACE_S = 100_000, 4_000, 0.001


def caller_us(call: Callable[[int], None], calls: int, *, paced_s: float = 0.0) -> float:
    """Median over repeats of the calling thread's CPU microseconds a call."""
    figures = []
    for _ in range(REPEATS):
        gc.collect()
        spent = 0.0
        if paced_s:
            for i in range(calls):
                start = time.thread_time()
                call(i)
                spent += time.thread_time() - start
                time.sleep(paced_s)
        else:
            start = time.thread_time()
            for i in range(calls):
                call(i)
            spent = time.thread_time() - start
        figures.append(spent / calls * 1e6)
        metrana.flush()
    return statistics.median(figures)


def _nothing(metric_name: Any, value: Any = None, *, step: Any = None) -> None:
    """An empty call: what calling costs, paced or not."""


class Workloads:
    """The calls that are measured, with their data made beforehand."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.keys = {f"metric{i}": 0.5 for i in range(20)}
        self.grids = rollouts(rng, _GRIDS, (64, 128))
        self.envs64 = [f"env{i}" for i in range(64)]
        self.wide = rng.standard_normal((_WIDE_ROWS, 1024), dtype=np.float32)
        self.envs1024 = [f"env{i}" for i in range(1024)]
        self.tall = rollouts(rng, _TALL, (4_096, 24))
        self.envs4096 = [f"env{i}" for i in range(4_096)]
        self.grid_calls = self.tall_calls = 0
        self.rl_step = 0
        self.step = 0

    def nothing(self, i: int) -> None:
        _nothing("loss", 0.5)

    def scalar(self, i: int) -> None:
        metrana.log("loss", 0.5)

    def scalar_step(self, i: int) -> None:
        self.step += 1
        metrana.log("loss/step", 0.5, step=self.step)

    def mapping(self, i: int) -> None:
        metrana.log(self.keys)

    def grid(self, i: int) -> None:
        values, episodes = self.grids[self.grid_calls]
        self.grid_calls += 1
        metrana.log_rl_environment_step(
            "reward", values, self.grid_calls, self.envs64, episode=episodes
        )

    def tall_grid(self, i: int) -> None:
        values, episodes = self.tall[self.tall_calls]
        self.tall_calls += 1
        metrana.log_rl_environment_step(
            "tall", values, self.tall_calls, self.envs4096, episode=episodes
        )

    def wide_row(self, i: int) -> None:
        self.rl_step += 1
        metrana.log_rl_environment_step(
            "wide", self.wide[self.rl_step % _WIDE_ROWS], self.rl_step, self.envs1024
        )


def callers() -> list[Row]:
    """What the training thread pays, tight and paced."""
    work = Workloads()
    rows = []
    for what, call, calls, paced, aim, yardstick in (
        ("an empty call", work.nothing, 50_000, 1_000, None, APPEND),
        ("scalar", work.scalar, 50_000, 1_000, 1.5, APPEND),
        ("scalar with step=", work.scalar_step, 50_000, 1_000, 1.5, APPEND),
        ("dict of 20", work.mapping, 5_000, 500, 10, APPEND),
        ("64x128 block, int64 episodes", work.grid, 300, 100, 25, COPY),
        ("1,024x1 block", work.wide_row, 1_000, 200, 40, COPY),
        ("4,096x24 block, int64 episodes", work.tall_grid, 6, 4, 1_000, COPY),
    ):
        for i in range(min(50, calls)):
            call(i)
        metrana.flush()
        for pace, count, pause_s in (("tight", calls, 0.0), ("paced", paced, 0.001)):
            figure = caller_us(call, count, paced_s=pause_s)
            what_now = f"caller CPU, {pace}: {what}"
            factor = 1.5 if pace == "tight" else 2.0
            rows.append(Row(what_now, figure, "us/call", aim, yardstick, factor))
    empty, scalar = (rows[index].figure for index in (0, 2))
    rows.append(
        Row("caller CPU, tight: scalar beyond an empty call", scalar - empty, "us/call", 0.7)
    )
    return rows


# --- tails ------------------------------------------------------------------------------------
def tails() -> list[Row]:
    """p99 of a scalar call beside that of a bare append, taken turn by turn."""
    rows = []
    for what, calls, pause_s in (
        ("tight", _TAIL_CALLS, 0.0),
        ("paced", _TAIL_PACED_CALLS, _PACE_S),
    ):
        ours, bare = _turns(calls, pause_s)
        metrana.flush()
        ratio = float(np.percentile(ours, 99) / np.percentile(bare, 99))
        rows.append(Row(f"p99 of a scalar call, {what}", _us(ours, 99), "us", None, "", 0))
        rows.append(Row(f"p99.9 of a scalar call, {what}", _us(ours, 99.9), "us", None, "", 0))
        rows.append(Row(f"longest scalar call, {what}", _us(ours, 100), "us", None, "", 0))
        rows.append(Row(f"p99 of a bare append, {what}", _us(bare, 99), "us", None, "", 0))
        rows.append(Row(f"p99 of a scalar call / of an append, {what}", ratio, "x", 3, "", 2.0))
    return rows


def _turns(calls: int, pause_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds of each scalar call and of each append in turn."""
    queue: collections.deque[Any] = collections.deque(maxlen=1_000)
    log, clock = metrana.log, time.perf_counter_ns
    ours, bare = np.empty(calls, np.int64), np.empty(calls, np.int64)
    for number in range(calls):
        start_ns = clock()
        log("tail", 0.5)
        middle_ns = clock()
        queue.append(("tail", 0.5))
        bare[number] = clock() - middle_ns
        ours[number] = middle_ns - start_ns
        if pause_s:
            time.sleep(pause_s)
    return ours, bare


def _us(took_ns: np.ndarray, percentile: float) -> float:
    return float(np.percentile(took_ns, percentile)) / 1e3


# --- the two surfaces -------------------------------------------------------------------------
def awaited() -> list[Row]:
    """What awaiting a call costs beyond the blocking call, when there is room."""
    blocking = metrana.current_run()
    differences = []

    async def compare() -> None:
        run = await metrana_async.init(
            project_name="bench",
            run_name="awaited",
            data_dir=blocking.settings.data_dir,
            quiet=True,
        )
        for _ in range(_ASYNC_ROUNDS):
            start_s = time.thread_time()
            for _ in range(_ASYNC_CALLS):
                await run.log("loss", 0.5)
            awaited_s = time.thread_time()
            for _ in range(_ASYNC_CALLS):
                blocking.log("loss", 0.5)
            blocked_s = time.thread_time()
            differences.append((awaited_s - start_s) - (blocked_s - awaited_s))
            await run.flush()
            await asyncio.to_thread(blocking.flush)
        await run.close()

    asyncio.run(compare())
    figure = statistics.median(differences) / _ASYNC_CALLS * 1e6
    return [Row("caller CPU: awaiting a scalar beyond blocking", figure, "us/call", 0.5, "", 0)]


def measure() -> Sequence[Row]:
    """All of it; the current run is logged to."""
    return [*callers(), *tails(), *awaited()]
