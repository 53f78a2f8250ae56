"""Run simulations: ``python -m tests.simulation --seeds 10000``; see `--help`.

Exits with 1 when a seed failed, and names how to see it again.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from metrana_async.errors import MetranaWarning
from tests.simulation.sometimes import never_seen
from tests.simulation.world import LEFT_OUT, Report, run_seed


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--jobs", type=int, default=1, help="processes to share them (default 1)")
    parser.add_argument(
        "--left-out",
        default=",".join(LEFT_OUT),
        metavar="FAULTS",
        help="faults that worlds are spared, with commas between (default %(default)r)",
    )
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", MetranaWarning)
    left_out = tuple(name for name in given.left_out.split(",") if name)
    run = partial(run_seed, keeps_trace=given.trace, left_out=left_out)
    seeds = range(given.first, given.first + given.seeds)
    total = Total()
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs) as pool:
            for report in pool.map(run, seeds, chunksize=10):
                total.add(report)
    else:
        for seed in seeds:
            total.add(run(seed))
    total.tell()
    return 1 if total.failed else 0


class Total:
    """Sums over seeds, and what is said of each."""

    def __init__(self) -> None:
        self.failed: list[int] = []
        self.counts: Counter[str] = Counter()
        self.worlds: Counter[str] = Counter()
        self.seeds_count = self.points_count = 0
        self.virtual_s = self.real_s = 0.0

    def add(self, report: Report) -> None:
        for line in report.lines:
            print(line)
        if report.findings:
            self.failed.append(report.seed)
            print(f"seed {report.seed} FAILED; again: {again(report.seed)}", flush=True)
            for finding in report.findings:
                print(f"  {finding}")
        if report.lines:
            print(f"seed {report.seed} trace {report.digest}")
        self.counts += report.counts
        self.worlds.update(kind for kind, count in report.counts.items() if count)
        self.seeds_count += 1
        self.points_count += report.points_count
        self.virtual_s += report.virtual_s
        self.real_s += report.real_s

    def tell(self) -> None:
        for kind, count in sorted(self.counts.items()):
            print(f"{count:10} {kind} in {self.worlds[kind]} worlds")
        for kind in never_seen(self.counts):
            print(f"never seen: {kind}")
        print(
            f"{self.seeds_count} seeds ran, {len(self.failed)} failed; {self.points_count} points; "
            f"{self.virtual_s:.0f} s of virtual time in {self.real_s:.1f} s, "
            f"{self.virtual_s / self.real_s:.0f} times real time"
        )
        if self.failed:
            print(f"failed: {self.failed}")


def again(seed: int) -> str:
    """The command that shows one seed again."""
    return f"python -m tests.simulation --first {seed} --seeds 1 --trace"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
