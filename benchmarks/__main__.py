"""`python -m benchmarks`: what this client and its server cost, beside yardsticks and a baseline.

The exit status is 0 whatever comes out: it informs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import metrana_sync_shim as metrana
from benchmarks.macro import callers, crowd, long_run, start, throughput, training
from benchmarks.record import commit, machine, put_into
from benchmarks.rows import Row, beside_yardsticks, compared, line, read_baseline, table
from tests.conformance.runner import ServerProcess

BASELINE = Path(__file__).parent / "baseline.json"


def _logging(measure: Callable[[ServerProcess], Sequence[Row]]) -> Sequence[Row]:
    """Measure with a server of its own and a current run at it."""
    with tempfile.TemporaryDirectory(prefix="metrana-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        try:
            with metrana.init(project_name="bench", data_dir=str(server.data_dir), quiet=True):
                return measure(server)
        finally:
            server.stop()


SECTIONS: dict[str, Callable[[float], Sequence[Row]]] = {
    "callers": lambda _: _logging(lambda _: callers.measure()),
    "throughput": lambda _: _logging(throughput.to_the_ack),
    "bytes": lambda _: throughput.bytes_a_point(),
    "start": start.measure,
    "training": training.measure,
    "long_run": long_run.measure,
    "crowd": crowd.measure,
}
"""By name; the argument is the share of the usual amount, where a section has one."""


def main() -> int:
    """Measure, print and compare; returns the exit status."""
    given = _arguments()
    rows: list[Row] = []
    loads = []
    for section in given.only or SECTIONS:
        loads.append(os.getloadavg()[0])
        print(f"\n{section} (load average {loads[-1]:.1f})", flush=True)
        found = beside_yardsticks(lambda section=section: SECTIONS[section](given.scale))
        print("\n".join(line(row) for row in found), flush=True)
        rows += found
    print("\n" + "\n".join(compared(rows, read_baseline(given.baseline))))
    if given.page:
        put_into(given.page, "bench", [machine(loads), "", *table(rows)])
    if given.json:
        content = {
            "commit": commit(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "loads": loads,
            "rows": [asdict(row) for row in rows],
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual amount")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="compare with this")
    parser.add_argument("--page", type=Path, help="have the table in this page")
    parser.add_argument("--json", type=Path, help="write the figures here (a new baseline)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
