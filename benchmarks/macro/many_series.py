"""Does a run of 120,000 series stay usable: joining it, listing it, finding runs, last steps?

Expected orders: joining a tenth of a second; a first question, and listing, about a second each;
filters and single series milliseconds. `python -m benchmarks.macro.many_series [--series N]` prints
a Markdown table. Beside the seconds that passed stands the processor time of client and server
together: on a machine that has other work to do it is the one to compare.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import metrana_sync_shim as metrana
from benchmarks.processes import cpu_of, disk_bytes
from tests.conformance.runner import ServerProcess

STEPS = 2
_GROUP = 10_000


def fill(directory: Path, count: int) -> float:
    """Log `STEPS` points of each of `count` series; seconds until all are stored."""
    start = time.perf_counter()
    with opened(directory) as run:
        for step in range(STEPS):
            for low in range(0, count, _GROUP):
                names = range(low, min(low + _GROUP, count))
                run.log({f"layer/{n // 100}/unit/{n}": float(step) for n in names}, step=step)
    return time.perf_counter() - start


def opened(directory: Path) -> metrana.Run:
    """Join the run as a new writer."""
    return metrana.init(
        project_name="many",
        run_name="wide",
        data_dir=str(directory),
        resume_strategy="allow",
        quiet=True,
    )


def asked(directory: Path) -> None:
    """Join, and wait for all that a joining writer may know."""
    with opened(directory) as run:
        assert run.get_last_step("layer/7/unit/701") == STEPS - 1
        run.shutdown_logger()


def processor_s(server: ServerProcess) -> float:
    """Processor time that this process and the server have used, in seconds."""
    return time.process_time() + cpu_of(server.pid)


def figures(server: ServerProcess, call: Callable[[], object], repeats: int = 3) -> str:
    """Of the first call and the best of the rest: seconds, and seconds of processor time."""
    passed, used = [], []
    for _ in range(repeats):
        start, start_used = time.perf_counter(), processor_s(server)
        call()
        passed.append(time.perf_counter() - start)
        used.append(processor_s(server) - start_used)
    return f"{passed[0]:.2f} / {min(passed[1:]):.2f} s | {used[0]:.2f} / {min(used[1:]):.2f} s"


def main() -> None:
    """Fill, restart the server so that nothing is warm, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--series", type=int, default=120_000)
    count = parser.parse_args().series
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "data"
        server = ServerProcess(directory)
        rows.append((f"log and store {STEPS} points of each", f"{fill(directory, count):.1f} s |"))
        for what in ("unsealed", "sealed, server restarted"):
            join = lambda: opened(directory).shutdown_logger()
            ask = lambda: asked(directory)
            rows.append((f"join and leave ({what})", figures(server, join)))
            rows.append((f"join, ask for a last step, and leave ({what})", figures(server, ask)))
            with metrana.QueryClient(project="many", data_dir=str(directory)) as client:
                for name, call in (
                    ("list its metrics", lambda: client.metrics("wide")),
                    ("last step of every series", lambda: client.last_steps("wide")),
                    ("list runs", client.runs),
                    ("runs by config and state", lambda: client.runs(where="state = 'running'")),
                    (
                        "runs by a summary",
                        lambda: client.runs(where="summary.layer/7/unit/701.last >= 1"),
                    ),
                    ("summary of ten metrics", lambda: client.series_summaries(
                        "wide", [f"layer/0/unit/{n}" for n in range(10)])),
                    ("one series", lambda: client.series("wide", "layer/7/unit/701")),
                    ("metric definitions", client.metric_definitions),
                ):  # fmt: skip
                    rows.append((f"{name} ({what})", figures(server, call)))
                assert len(client.last_steps("wide")) == count
            start = time.perf_counter()
            server.stop()
            if what == "unsealed":
                rows.append(("seal everything and stop", f"{time.perf_counter() - start:.1f} s |"))
                start = time.perf_counter()
                server = ServerProcess(directory)
                rows.append(("start again", f"{time.perf_counter() - start:.2f} s |"))
        rows.append(("on disk", f"{disk_bytes(directory) / 1e6:.0f} MB |"))
    print(f"| {count:,} series | first / again | processor |\n|---|---|---|")
    for what, figure in rows:
        print(f"| {what} | {figure} |")


if __name__ == "__main__":
    main()
