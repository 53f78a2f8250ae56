"""What runs in a peer's own process: ``python -m benchmarks.peers.child JOB`` (JSON).

It makes the data, opens the run, says "ready", waits for a line, logs, closes, and writes one JSON
object to the job's file ``answer``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.adapters.base import Adapter
from benchmarks.peers.timing import Bare, bare, clocked, together
from benchmarks.peers.workloads import METRIC, READY, Calls, scaled
from benchmarks.processes import descendants, family_cpu_s, memory_mb

_FILL_CALL = 10_000
_RESET_PEAK = Path("/proc/self/clear_refs")


class Child:
    """One job."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._workload = scaled(job["workload"], job.get("scale", 1.0))
        self._memory_mb = 0.0

    def do(self) -> None:
        """Do the task and write the answer."""
        answer = getattr(self, f"_{self._job['task']}")()
        Path(self._job["answer"]).write_text(json.dumps(answer))

    # --- tasks ------------------------------------------------------------------------------------
    def _log(self) -> dict[str, Any]:
        """Log one workload; every figure of it."""
        assert self._workload is not None
        data = [Calls(self._workload, thread) for thread in range(self._workload.threads)]
        client, started = self._start()
        calls = [each.of(client) for each in data]
        for call in calls:
            call(0)  # whatever a first call brings up, it brings up here
        _meet()
        cpu_s, start_s = family_cpu_s(), time.perf_counter()
        loops, took_ns = self._loops(calls)
        close_start_s = time.perf_counter()
        client.close()
        end_s = time.perf_counter()
        calls_count = sum(loop.calls for loop in loops) + took_ns.size
        answer = started | {
            "calls": calls_count,
            "points": calls_count * self._workload.points,
            "durable_s": end_s - start_s,
            "close_s": end_s - close_start_s,
            "cpu_s": family_cpu_s() - cpu_s,
            "memory_mb": self._memory_used_mb(),
        }
        return answer | _caller_figures(loops, took_ns, is_paced=self._workload.rate_hz > 0)

    def _fill(self) -> dict[str, Any]:
        """Log one long metric, until it is long enough or the time is over."""
        client, _ = self._start()
        _meet()
        values = np.random.default_rng(0).standard_normal(_FILL_CALL).astype(np.float32)
        end_s = time.perf_counter() + self._job["limit_s"]
        points, gulp = 0, 1
        while (left := self._job["points"] - points) > 0 and time.perf_counter() < end_s:
            column = values[: min(gulp, left)]
            client.column(METRIC, column, points)
            points, gulp = points + len(column), 2 * gulp
        client.close()
        return {"points": points}

    def _read(self) -> dict[str, Any]:
        """Read it back."""
        client = self._load()
        _meet()
        cpu_s, start_s = family_cpu_s(), time.perf_counter()
        points = client.count(METRIC)
        return {
            "points": points,
            "read_s": time.perf_counter() - start_s,
            "cpu_s": family_cpu_s() - cpu_s,
        }

    # --- steps ------------------------------------------------------------------------------------
    def _load(self) -> Adapter:
        module = importlib.import_module(f"benchmarks.peers.adapters.{self._job['adapter']}")
        return module.Client(
            Path(self._job["directory"]), self._job["run"], self._job.get("server", "")
        )

    def _start(self) -> tuple[Adapter, dict[str, float]]:
        _RESET_PEAK.write_text("5")
        self._memory_mb = memory_mb(os.getpid())
        start_s = time.perf_counter()
        client = self._load()
        loaded_s = time.perf_counter()
        client.open()
        opened_s = time.perf_counter()
        return client, {"import_s": loaded_s - start_s, "init_s": opened_s - loaded_s}

    def _loops(self, calls: list[Any]) -> tuple[list[Bare], np.ndarray]:
        """A loop without a clock, then one with; every thread does both."""
        workload = self._workload
        assert workload is not None
        limit_s, count = self._job["limit_s"], workload.calls
        loops: list[Bare] = []
        took_ns: list[np.ndarray] = []

        def work(call: Any) -> None:
            first = 1
            if not workload.rate_hz:
                loops.append(bare(call, first, count, limit_s))
                first += loops[-1].calls
            if not workload.is_pending:
                took_ns.append(clocked(call, first, count, limit_s, workload.rate_hz))

        if len(calls) == 1:
            work(calls[0])
        else:
            together([lambda call=call: work(call) for call in calls])
        return loops, np.concatenate([np.empty(0, np.int64), *took_ns])

    def _memory_used_mb(self) -> float:
        """Peak memory beyond what there was before the peer was imported, with all children."""
        children = sum(memory_mb(pid, "VmHWM") for pid in descendants(os.getpid()))
        return memory_mb(os.getpid(), "VmHWM") - self._memory_mb + children


def _meet() -> None:
    print(READY, end="", flush=True)
    sys.stdin.readline()


def _caller_figures(loops: list[Bare], took_ns: np.ndarray, *, is_paced: bool) -> dict[str, float]:
    """Microseconds a call, as the caller sees them."""
    figures: dict[str, float] = {}
    if took_ns.size:
        p50, p99 = np.percentile(took_ns, (50, 99))
        figures |= {"p50_us": p50 / 1e3, "p99_us": p99 / 1e3, "max_us": took_ns.max() / 1e3}
    if is_paced:
        return figures | {"mean_us": took_ns.mean() / 1e3}
    calls = sum(loop.calls for loop in loops)
    return figures | {
        "mean_us": sum(loop.wall_s for loop in loops) / calls * 1e6,
        "caller_us": sum(loop.cpu_s for loop in loops) / calls * 1e6,
    }


if __name__ == "__main__":
    Child(json.loads(sys.argv[1])).do()
