"""What does a read cost the server, on stores as large as a long run leaves behind?

Expected orders: a chart of 500 buckets some ten milliseconds whatever the series' length, a raw
point some ten nanoseconds. `python -m benchmarks.macro.reads [--millions N]` prints a table of
processor milliseconds: median of several, HTTP left out. Divide figures of two versions taken on
one machine; alone they say little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.processes import disk_bytes
from metrana_async.server.ingest.service import IngestService
from metrana_async.server.query.curves import buckets
from metrana_async.server.query.environments import aggregate_environments
from metrana_async.server.query.service import QueryService
from metrana_async.server.query.summaries import summary_columns
from metrana_async.server.store.base import (
    AcceptedPoints,
    AcceptedSegments,
    Commit,
    RunRow,
    SeriesRow,
    WriterRow,
)
from metrana_async.server.store.sqlite.store import SqliteStore
from metrana_async.wire.model import Family, Ordering, SeriesDef, StepMode
from metrana_async.wire.statistics import StatisticsQuery

_COMMIT_POINTS = 500_000
_RUNS_COUNT = 100
_RUN_POINTS = 100_000
_ENVS_COUNT = 1_024
_ENV_STEPS = 2_000
_REPEATS = 5


class Filler:
    """Fills a store as the ingest service would, without its rules."""

    def __init__(self, store: SqliteStore, seed: int) -> None:
        self.store = store
        self.random = np.random.default_rng(seed)
        self.runs_count = self.series_count = 0

    def run(self) -> int:
        """A new run with one writer of its number."""
        number = self.runs_count = self.runs_count + 1
        uid = f"{number:032x}"
        row = RunRow(number, uid, "default", "bench", f"run-{number}", 0, "finished", 0, ["job"])
        writer = WriterRow(number, number, uid, number, None, {}, False, 0, 0)
        self.store.commit(Commit(runs=[row], writers=[writer]))
        return number

    def series(self, run_no: int, family: Family, scale: str) -> int:
        """A new series of a run, named by its place in the run."""
        number = self.series_count = self.series_count + 1
        of_what = "reward" if family is Family.ENV_STEP else "loss"
        episodic = False if family is Family.ENV_STEP else None
        of = SeriesDef(family, of_what, scale, (), Ordering.ORDERED, episodic)
        self.store.commit(Commit(series=[SeriesRow(number, run_no, of)]))
        return number

    def standard(self, points_count: int) -> None:
        """A run with one STANDARD series of so many points, sealed."""
        run_no = self.run()
        series_no = self.series(run_no, Family.STANDARD, "ML_STEP")
        for start in range(0, points_count, _COMMIT_POINTS):
            n = min(_COMMIT_POINTS, points_count - start)
            step = np.arange(start, start + n, dtype=np.int64)
            zeros = np.zeros(n, dtype=np.int64)
            value = self.random.standard_normal(n).astype(np.float32)
            column = np.full(n, series_no, dtype=np.int64)
            points = AcceptedPoints(run_no, run_no, column, zeros, step, zeros, step * 7, value)
            self.store.commit(Commit(points=[points]))
            self.seal(everything=False)
        self.seal(everything=True)

    def rewards(self, envs_count: int, steps_count: int) -> None:
        """A run with one ENV_STEP series, an rl_step of one step of all environments a commit."""
        run_no = self.run()
        series_no = self.series(run_no, Family.ENV_STEP, "ENVIRONMENT_STEP")
        names = [(run_no, env, f"env-{env}") for env in range(envs_count)]
        self.store.commit(Commit(envs=names))
        env_no = np.arange(envs_count, dtype=np.int64)
        for step in range(steps_count):
            here = np.full(envs_count, step, dtype=np.int64)
            zeros, ones = np.zeros(envs_count, dtype=np.int64), np.ones(envs_count, dtype=np.int64)
            value = self.random.standard_normal(envs_count).astype(np.float32)
            segments = AcceptedSegments(
                run_no=run_no,
                writer_no=run_no,
                series_no=series_no,
                mode=StepMode.AUTO,
                env_no=env_no,
                episode=zeros - 1,
                generation=zeros,
                rl_step=here,
                minor=zeros,
                step=here,
                count=ones,
                time_ms=here * 100,
                value=value,
            )
            self.store.commit(Commit(segments=[segments]))
            self.seal(everything=False)
        self.seal(everything=True)

    def seal(self, *, everything: bool) -> None:
        """Seal what is due, with true cursors."""
        for unit in self.store.due(now_s=0.0, everything=everything):
            IngestService(self.store).seal(unit)


def processor_ms(read: Callable[[], object]) -> float:
    """Median processor time of a read in milliseconds, the first, cold one left out."""
    taken = []
    for _ in range(_REPEATS + 1):
        start = time.process_time()
        read()
        taken.append(time.process_time() - start)
    return 1e3 * statistics.median(taken[1:])


def chart(service: QueryService, runs: list[str]) -> Callable[[], object]:
    """A chart of 500 buckets of the loss of these runs."""
    asked = StatisticsQuery(
        workspace="default", project="bench", runs=runs, metrics=["loss"], buckets=500
    )
    return lambda: buckets(service, asked)


def measure(folder: Path, millions: int) -> list[tuple[str, float]]:
    """Fill one store, read it, and give what each read takes in processor milliseconds."""
    rows: list[tuple[str, float]] = []
    store = SqliteStore(folder)
    filler = Filler(store, seed=1)
    start = time.process_time()
    filler.standard(millions * 1_000_000)
    took = 1e3 * (time.process_time() - start) / millions
    rows.append(("store and seal 1M points of one series", took))
    rows.append(("(bytes of one of its points)", disk_bytes(folder) / (millions * 1e6)))
    filler.rewards(_ENVS_COUNT, _ENV_STEPS)
    for _ in range(_RUNS_COUNT):
        filler.standard(_RUN_POINTS)
    service = QueryService(store)
    many = [f"run-{3 + at}" for at in range(_RUNS_COUNT)]
    rows.append((f"500 buckets of {millions}M points", processor_ms(chart(service, ["run-1"]))))
    rows.append(
        (f"500 buckets of {_RUNS_COUNT} runs × 100k points", processor_ms(chart(service, many)))
    )
    across = StatisticsQuery(
        workspace="default", project="bench", runs=["run-2"], metrics=["reward"]
    )
    rows.append(
        (
            f"mean ± std across {_ENVS_COUNT} environments, 2M points",
            processor_ms(lambda: aggregate_environments(service, across)),
        )
    )
    first = service.find_run("default", "bench", "run-1")
    rows.append(
        (
            "1M raw points to numpy",
            processor_ms(lambda: service.series(first, "loss", step_range=(0, 999_999))),
        )
    )
    found = [service.find_run("default", "bench", name) for name in many]
    rows.append(
        (
            f"summaries of {_RUNS_COUNT} runs × 100k points",
            processor_ms(lambda: summary_columns(service, found, ["loss"])),
        )
    )
    service.close()
    store.close()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--millions", type=int, default=10)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), parser.parse_args().millions)
    print("| what | processor ms |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value:.2f} |")


if __name__ == "__main__":
    main()
