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

_REPEATS = 5
_ROOT = Path(__file__).parent.parent.parent
_IMPORT = """
import time, numpy
start_s = time.perf_counter()
import metrana_sync_shim
print('{"import_s": %f}' % (time.perf_counter() - start_s))
"""


def _medians(arguments: Sequence[str], repeats: int = _REPEATS) -> dict[str, float]:
    """Of what a fresh interpreter with these arguments prints."""
    answers: list[dict[str, float]] = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, *arguments], stdout=subprocess.PIPE, check=True, cwd=_ROOT, text=True
        )
        answers.append(json.loads(done.stdout))
    return {name: statistics.median(each[name] for each in answers) for name in answers[0]}


def _in_fresh_processes(
    task: Callable[[str], dict[str, float]], data_dir: Path, repeats: int = _REPEATS
) -> dict[str, float]:
    """Medians of what the task answers."""
    return _medians(["-m", "benchmarks.macro.fresh", task.__name__, str(data_dir)], repeats)


def measure(scale: float = 1.0) -> Sequence[Row]:
    """All of it; `scale` is a share of the 120,000 series."""
    series_count = int(120_000 * scale)
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
        data_dir = Path(folder) / "data"
        server = ServerProcess(data_dir)
        try:
            imported = _medians(["-c", _IMPORT])
            opened = _in_fresh_processes(fresh.opens, data_dir)
            idle = _in_fresh_processes(fresh.idles, data_dir, 3)
            closed = _in_fresh_processes(fresh.closes, data_dir, 3)
            many_series.fill(data_dir, series_count)
            joined = _in_fresh_processes(fresh.joins, data_dir, 3)
        finally:
            server.stop()
    ms = 1e3
    return [
        Row("import metrana_sync_shim beyond numpy", imported["import_s"] * ms, "ms", 120, APPEND),
        Row("init() of a new run, first of the process", opened["first_s"] * ms, "ms", 30, APPEND),
        Row("init() of a new run, later", opened["second_s"] * ms, "ms", 30, APPEND, 2.0),
        Row(
            f"init() of a run of {series_count:,} series", joined["join_s"] * ms, "ms", 300, APPEND
        ),
        Row("idle memory above numpy", idle["idle_mb"], "MB", 25, "", 1.2),
        Row("logging 1M block points", closed["log_s"] * ms, "ms", None, APPEND, 2.0),
        Row("close with 1M block points pending", closed["close_s"] * ms, "ms", 1_000, APPEND, 2.0),
    ]
