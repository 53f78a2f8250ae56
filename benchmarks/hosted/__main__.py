"""`python -m benchmarks.hosted`: this client and the hosted service's, side by side, offline.

The exit status is 1 when this client broke a promise; what the other does is only reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.hosted import scenarios, table
from benchmarks.hosted.scenarios import Bench, Outcome, happen
from benchmarks.hosted.servers import ROOT, OurServer, Server, TheirServer

SCENARIOS: dict[str, tuple[Callable[[Bench], Outcome], int]] = {
    "kill_paced": (scenarios.kill_paced, 5),
    "kill_full_speed": (scenarios.kill_full_speed, 5),
    "flip_byte": (scenarios.flip_byte, 5),
    "cap_reached": (scenarios.cap_reached, 2),
    "exit_without_close": (scenarios.exit_without_close, 3),
    "close_network_silent": (scenarios.close_network_silent, 2),
    "close_server_mute": (scenarios.close_server_mute, 1),
    "log_server_mute": (scenarios.log_server_mute, 1),
    "flush_latency": (scenarios.flush_latency, 2),
}
"""By name, with how often each is repeated."""


def main() -> int:
    """Run, print the table; returns the exit status."""
    given = _arguments()
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(f"seed {seed}; {platform.machine()}, {os.cpu_count()} cores", flush=True)
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    loads = []
    with tempfile.TemporaryDirectory(prefix="side-by-side-", dir=given.directory) as name:
        directory = Path(name)
        clients: dict[str, tuple[Path, Server]] = {}
        try:
            clients["ours"] = (Path(sys.executable), OurServer(directory))
            clients["theirs"] = (
                given.hosted_python.absolute(),
                TheirServer(directory, given.hosted_python.absolute()),
            )
            for scenario in given.only or SCENARIOS:
                do, repeats = SCENARIOS[scenario]
                for client, (python, server) in clients.items():
                    for number in range(given.repeats or repeats):
                        run = f"{scenario}-{number}"
                        chance = random.Random(f"{seed} {run}")
                        bench = Bench(
                            client, python, server, directory / f"{client}-{run}", run, chance
                        )
                        outcome = happen(do, bench)
                        outcomes.setdefault((scenario, client), []).append(outcome)
                        loads.append(os.getloadavg()[0])
                        print(
                            f"{client:7} {run}: {'; '.join(outcome.said) or '(nothing said)'}",
                            flush=True,
                        )
        finally:
            for _, server in clients.values():
                server.stop()
    _print(outcomes, loads)
    if given.json:
        _write(given.json, seed, loads, outcomes)
    broken = table.violations(outcomes)
    for line in broken:
        print(f"BROKEN: {line}", file=sys.stderr)
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosted")
    parser.add_argument(
        "--hosted-python",
        type=Path,
        default=ROOT / ".venv-hosted/bin/python",
        help="the interpreter that has the hosted client (default: that of `make bench-hosted`)",
    )
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, help="these scenarios only")
    parser.add_argument("--repeats", type=int, help="so many runs of each, not its own number")
    parser.add_argument("--seed", type=int, help="when and where misfortunes strike")
    parser.add_argument("--directory", type=Path, help="on this disk (default: the temporary one)")
    parser.add_argument("--json", type=Path, help="write every outcome here too")
    return parser.parse_args()


def _print(outcomes: table.Outcomes, loads: list[float]) -> None:
    print()
    print("\n".join(table.table(outcomes)))
    print()
    print("\n".join(table.ratios(outcomes)))
    print(
        f"load average: median {statistics.median(loads):.1f}, {min(loads):.1f} to {max(loads):.1f}"
    )


def _write(path: Path, seed: int, loads: list[float], outcomes: table.Outcomes) -> None:
    content = {
        "seed": seed,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "loads": loads,
        "outcomes": [
            {"scenario": scenario, "client": client} | asdict(run) | {"uncounted": run.uncounted}
            for (scenario, client), runs in outcomes.items()
            for run in runs
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
