"""How many bytes and how much CPU does a point cost the embedded store, and how long do reads take?

Expected: 3.4-3.6 bytes a point of white float32 noise, 0.1-0.4 us of CPU from commit to tile.
`python -m benchmarks.micro.bench_store [--scale 1.0]` prints a table and asserts nothing. Not
counted: HTTP, decoding of batches, the rules, heads.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    Commit,
    RunRow,
    SeriesRow,
)
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.model import Family, Ordering, SeriesDef, StepMode

METRICS_COUNT = 3
EPISODE_END = 0.01


@dataclass
class Rollouts:
    """`calls` rollouts of M environments x T steps, three metrics each; 1 % of points end one."""

    name: str
    envs_count: int
    steps_count: int
    calls_count: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    family = Family.ENV_STEP
    series_count = METRICS_COUNT

    def commits(self) -> Iterator[Commit]:
        """One commit a rollout."""
        m, t = self.envs_count, self.steps_count
        episode = np.zeros(m, dtype=np.int64)
        position = np.zeros(m, dtype=np.int64)
        for rl_step in range(self.calls_count):
            ends = self.random.random((m, t)) < EPISODE_END
            # A segment starts at the first step of the call and behind every end.
            starts = np.concatenate([np.ones((m, 1), dtype=bool), ends[:, :-1]], axis=1)
            env, at = np.nonzero(starts)
            count = np.diff(np.append(np.flatnonzero(starts.ravel()), m * t))
            index = np.cumsum(starts, axis=1)[env, at] - 1
            step = np.where(at == 0, position[env], 0)
            last = np.flatnonzero(np.append(env[1:] != env[:-1], True))
            has_ended = ends[:, -1]
            k = len(env)
            columns = {
                "env_no": env,
                "episode": episode[env] + index,
                "generation": np.zeros(k, dtype=np.int64),
                "rl_step": np.full(k, rl_step),
                "minor": np.where(at == 0, 0, 0),
                "step": step,
                "count": count,
                "time_ms": np.full(k, 1_700_000_000_000 + 50 * rl_step + rl_step % 7),
            }
            yield Commit(
                segments=[
                    AcceptedSegments(
                        *(1, 1, series_no, StepMode.AUTO),
                        **columns,
                        value=self.random.standard_normal(m * t, dtype=np.float32),
                    )
                    for series_no in range(1, METRICS_COUNT + 1)
                ]
            )
            position = np.where(has_ended, 0, (step + count)[last])
            episode += index[last] + has_ended


@dataclass
class Plain:
    """1,000 STANDARD series, one point each a commit, stamped with jitter."""

    name: str
    calls_count: int
    series_count: int = 1_000
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    family = Family.STANDARD

    def commits(self) -> Iterator[Commit]:
        """One commit a step."""
        n = self.series_count
        zeros = np.zeros(n, dtype=np.int64)
        now = 1_700_000_000_000
        for step in range(self.calls_count):
            now += int(self.random.integers(90, 130))
            value = self.random.standard_normal(n, dtype=np.float32)
            table = AcceptedPoints(
                *(1, 1, np.arange(1, n + 1), zeros, zeros + step, zeros, zeros + now, value)
            )
            yield Commit(points=[table])


def catalogue(series_count: int, family: Family) -> Commit:
    """One run and its series."""
    run = RunRow(1, "0" * 32, "default", "bench", "run", 0, "running", 0, ["job"])
    scale = "ML_STEP" if family is Family.STANDARD else "ENVIRONMENT_STEP"
    return Commit(
        runs=[run],
        series=[
            SeriesRow(n, 1, SeriesDef(family, f"m/{n}", scale, (), Ordering.ORDERED, None))
            for n in range(1, series_count + 1)
        ],
    )


def measure(load: Rollouts | Plain) -> dict[str, float | str]:
    """Commit everything, sealing what is due; then settle, count pages and time reads."""
    spent = {"commit": 0.0, "seal": 0.0}
    points_count, waits = 0, []
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(folder)
        store.commit(catalogue(load.series_count, load.family))
        for number, changes in enumerate(load.commits()):
            points_count += sum(len(t.value) for t in (*changes.points, *changes.segments))
            began, wall = time.process_time(), time.perf_counter()
            store.commit(changes)
            spent["commit"] += time.process_time() - began
            waits.append(time.perf_counter() - wall)
            spent["seal"] += seal(store, number, everything=False)
        spent["seal"] += seal(store, 0, everything=True)
        reads = read_times(store, load)
        began = time.perf_counter()
        store.close()
        reads["close ms"] = (time.perf_counter() - began) * 1e3
        size = (Path(folder) / "metrana.db").stat().st_size
        store = SqliteStore(folder)
        (free,) = store._writer.execute("PRAGMA freelist_count").fetchone()
        store.close()
    return {
        "workload": load.name,
        "points": points_count / 1e6,
        "B/pt used": (size - 4_096 * free) / points_count,
        "B/pt file": size / points_count,
        "commit us/pt": spent["commit"] / points_count * 1e6,
        "seal us/pt": spent["seal"] / points_count * 1e6,
        "commit p50 ms": float(np.median(waits)) * 1e3,
        **reads,
    }


def seal(store: SqliteStore, now_s: float, *, everything: bool) -> float:
    """Seal what is due; CPU seconds."""
    began = time.process_time()
    for unit in store.due(now_s=now_s / 10, everything=everything):
        store.seal(unit, dict.fromkeys(unit.series_nos, b"head"))
    return time.process_time() - began


def read_times(store: SqliteStore, load: Rollouts | Plain) -> dict[str, float]:
    """Milliseconds of CPU, best of three: one environment (or series), and a whole series."""

    def best(read) -> float:
        spent = []
        for _ in range(3):
            began = time.process_time()
            read()
            spent.append(time.process_time() - began)
        return min(spent) * 1e3

    if isinstance(load, Plain):
        one = best(lambda: store.read_points(7))
        return {"one ms": one, "whole ms": one}
    return {
        "one ms": best(lambda: store.read_env_steps(1, env_nos=[3])),
        "whole ms": best(lambda: store.read_env_steps(1)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.bench_store")
    parser.add_argument("--scale", type=float, default=1.0, help="calls, as a share of the usual")
    scale = parser.parse_args().scale
    loads = (
        Rollouts("a: 64 envs x 128", 64, 128, int(128 * scale)),
        Rollouts("b: 1,024 envs x 1", 1_024, 1, int(1_024 * scale)),
        Rollouts("c: 4,096 envs x 24", 4_096, 24, int(24 * scale)),
        Plain("plain: 1,000 series", int(1_024 * scale)),
    )
    for number, load in enumerate(loads):
        gc.collect()
        row = measure(load)
        if number == 0:
            print(" | ".join(f"{name:>14}" for name in row))
        cells = [f"{v:>14.3f}" if isinstance(v, float) else f"{v[:18]:>14}" for v in row.values()]
        print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
