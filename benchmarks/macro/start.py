"""What do importing, opening, idling and closing cost, each in a fresh process?

Expected orders: import a tenth of a second beyond numpy, a new run tens of milliseconds, a run of
120,000 series a few hundred, a close with a million points pending under a second.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.macro import fresh, many_series
from benchmarks.rows import APPEND, Row
from tests.conformance.runner import ServerProcess

_REPEATS, _FEW_REPEATS = 5, 3
_WALL_FACTOR, _CPU_FACTOR = 2.0, 1.5
_ROOT = Path(__file__).parent.parent.parent


def _in_fresh_processes(
    task: Callable[[str], dict[str, float]], data_dir: Path, repeats: int
) -> dict[str, float]:
    """Medians of what the task answers."""
    command = [sys.executable, "-m", "benchmarks.macro.fresh", task.__name__, str(data_dir)]
    answers: list[dict[str, float]] = []
    for _ in range(repeats):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=_ROOT, text=True)
        answers.append(json.loads(done.stdout))
    return {name: statistics.median(each[name] for each in answers) for name in answers[0]}


def _row(what: str, figures: dict[str, float], name: str, aim_ms: float | None) -> list[Row]:
    """The wall clock, which the machine's other work stretches, and the CPU of the process."""
    return [
        Row(what, figures[f"{name}_s"] * 1e3, "ms", aim_ms, APPEND, _WALL_FACTOR),
        Row(f"{what}: CPU", figures[f"{name}_cpu_s"] * 1e3, "ms", None, APPEND, _CPU_FACTOR),
    ]


def measure(scale: float = 1.0) -> Sequence[Row]:
    """All of it; `scale` is a share of the 120,000 series."""
    series_count = int(120_000 * scale)
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
        data_dir = Path(folder) / "data"
        server = ServerProcess(data_dir)
        try:
            opened = _in_fresh_processes(fresh.opens, data_dir, _REPEATS)
            idle = _in_fresh_processes(fresh.idles, data_dir, _FEW_REPEATS)
            closed = _in_fresh_processes(fresh.closes, data_dir, _FEW_REPEATS)
            many_series.fill(data_dir, series_count)
            joined = _in_fresh_processes(fresh.joins, data_dir, _FEW_REPEATS)
        finally:
            server.stop()
    return [
        *_row("import metrana_sync_shim beyond numpy", opened, "import", 120),
        *_row("init() of a new run, first of the process", opened, "first", 30),
        *_row("init() of a new run, later", opened, "second", 30),
        *_row(f"init() of a run of {series_count:,} series", joined, "join", 300),
        Row("idle memory above numpy", idle["idle_mb"], "MB", 25, "", 1.2),
        *_row("logging 1M block points", closed, "log", None),
        *_row("close with 1M block points pending", closed, "close", 1_000),
    ]
