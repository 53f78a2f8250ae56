"""What does logging cost: its caller a call, the client a point, the server a point, the start?

Expected orders: a scalar about a microsecond, a dict of 20 about ten, a 64x128 block tens, a
1,024x1 block tens; in all a few microseconds a scalar point and hundredths a block point.
"""

from __future__ import annotations

import collections
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import metrana_sync_shim as metrana
from tests.conformance.runner import ServerProcess

Row = dict[str, Any]
REPEATS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


def row(what: str, figure: float, unit: str, aim: float | None = None) -> Row:
    """One line of the table."""
    return {"what": what, "figure": figure, "unit": unit, "aim": aim}


def cpu_of(pid: int) -> float:
    """CPU seconds of another process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


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
        self.block = [rng.standard_normal((64, 128), dtype=np.float32) for _ in range(16)]
        self.episodes = [
            100 * call + np.cumsum(rng.random((64, 128)) < 0.01, axis=1) for call in range(6000)
        ]
        self.envs64 = [f"env{i}" for i in range(64)]
        self.wide = [rng.standard_normal(1024, dtype=np.float32) for _ in range(16)]
        self.envs1024 = [f"env{i}" for i in range(1024)]
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
        self.rl_step += 1
        metrana.log_rl_environment_step(
            "reward",
            self.block[i % 16],
            self.rl_step,
            self.envs64,
            episode=self.episodes[self.rl_step % 6000],
        )

    def wide_row(self, i: int) -> None:
        self.rl_step += 1
        metrana.log_rl_environment_step("wide", self.wide[i % 16], self.rl_step, self.envs1024)


def yardsticks() -> list[Row]:
    """What the machine does at its barest, in this process and at this moment."""
    queue: collections.deque[Any] = collections.deque()
    block = np.zeros((64, 128), np.float32)

    def append(i: int) -> None:
        queue.append((i, 0.5))

    def copy(i: int) -> None:
        np.array(block)

    result = []
    for what, call, calls in (
        ("deque.append", append, 200_000),
        ("copy of 64x128 float32", copy, 20_000),
    ):
        start = time.thread_time()
        for i in range(calls):
            call(i)
        result.append(
            row(f"yardstick: {what}", (time.thread_time() - start) / calls * 1e6, "us/call")
        )
    return result


def callers(work: Workloads) -> list[Row]:
    """What the training thread pays."""
    result = []
    for what, call, calls, paced, aim in (
        ("an empty call", work.nothing, 50_000, 1_000, None),
        ("scalar", work.scalar, 50_000, 1_000, 1.5),
        ("scalar with step=", work.scalar_step, 50_000, 1_000, 1.5),
        ("dict of 20", work.mapping, 5_000, 500, 15),
        ("64x128 block, int64 episodes", work.grid, 500, 200, 40),
        ("1,024x1 block", work.wide_row, 1_000, 200, 80),
    ):
        for i in range(50):
            call(i)
        metrana.flush()
        result.append(row(f"caller CPU, tight: {what}", caller_us(call, calls), "us/call", aim))
        result.append(
            row(f"caller CPU, paced: {what}", caller_us(call, paced, paced_s=0.001), "us/call", aim)
        )
    return result


def throughput(work: Workloads, server: ServerProcess) -> list[Row]:
    """CPU and bytes of client and server from the call to the acknowledgement."""
    result = []
    for what, call, calls, points, aims in (
        ("scalars", work.scalar, 200_000, 1, (3, 1.5)),
        ("dicts of 20", work.mapping, 10_000, 20, (3, 1.5)),
        ("64x128 blocks", work.grid, 500, 8192, (0.05, 1.5)),
        ("1,024x1 blocks", work.wide_row, 2_000, 1024, (0.05, 1.5)),
    ):
        metrana.flush()
        client_s, server_s = time.process_time(), cpu_of(server.pid)
        for i in range(calls):
            call(i)
        metrana.flush()
        total = calls * points
        client_us = (time.process_time() - client_s) / total * 1e6
        server_us = (cpu_of(server.pid) - server_s) / total * 1e6
        result.append(row(f"client CPU to the ack: {what}", client_us, "us/point", aims[0]))
        result.append(row(f"server CPU to the ack: {what}", server_us, "us/point", aims[1]))
    return result


def stored_bytes(directory: Path) -> int:
    """Bytes of the store on disk, write-ahead log included."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def bytes_per_point() -> list[Row]:
    """Size of the store after dense float32 blocks, the server stopped (all sealed)."""
    result = []
    for what, name, calls, points in (
        ("64x128 blocks", "grid", 500, 8192),
        ("1,024x1 blocks", "wide_row", 3_000, 1024),
    ):
        with tempfile.TemporaryDirectory(prefix="metrana-bench-") as directory:
            server = ServerProcess(Path(directory) / "data")
            work = Workloads()
            rng = np.random.default_rng(1)
            run = metrana.init(project_name="bytes", data_dir=str(server.data_dir), quiet=True)
            for i in range(calls):
                work.block[i % 16] = rng.standard_normal((64, 128), dtype=np.float32)
                work.wide[i % 16] = rng.standard_normal(1024, dtype=np.float32)
                getattr(work, name)(i)
            run.close()
            server.stop()
            size = stored_bytes(Path(directory) / "data")
            result.append(row(f"store on disk: {what}", size / (calls * points), "bytes/point", 5))
    return result


def imports() -> list[Row]:
    """What importing the shim costs beyond numpy."""
    figures = []
    for module in ("numpy", "metrana_sync_shim"):
        program = (
            f"import time; a = time.perf_counter(); import {module}; print(time.perf_counter() - a)"
        )
        times = [
            float(
                subprocess.run(
                    [sys.executable, "-c", program], capture_output=True, check=True
                ).stdout
            )
            for _ in range(REPEATS)
        ]
        figures.append(statistics.median(times))
    return [
        row("import metrana_sync_shim beyond numpy", (figures[1] - figures[0]) * 1e3, "ms", 120)
    ]


def measure() -> list[Row]:
    """All figures."""
    rows = yardsticks()
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as directory:
        server = ServerProcess(Path(directory) / "data")
        try:
            metrana.init(project_name="bench", data_dir=str(server.data_dir), quiet=True)
            work = Workloads()
            rows += callers(work)
            rows += throughput(work, server)
            metrana.close()
        finally:
            server.stop()
    return rows + bytes_per_point() + imports()
