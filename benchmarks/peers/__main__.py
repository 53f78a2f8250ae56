"""`python -m benchmarks.peers`: the same calls with this client and with its peers, as tables.

The exit status is 0 whatever comes out: it informs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks.peers import table
from benchmarks.peers.driver import Answer, Effort, PeerFailed, measure
from benchmarks.peers.roster import PEERS
from benchmarks.peers.workloads import READ, WORKLOADS
from benchmarks.record import commit, machine, put_into


def main() -> int:
    """Measure and print; returns the exit status."""
    given = _arguments()
    answers: dict[tuple[str, str], list[Answer]] = {}
    failures: dict[str, str] = {}
    for _ in range(given.repeats):
        for workload in given.only or (*WORKLOADS, READ):
            for peer in PEERS:
                is_asked = not given.peers or peer.name in given.peers
                if not is_asked or (workload == READ and not peer.can_read):
                    continue
                load = os.getloadavg()[0]
                try:
                    answer = measure(
                        peer, workload, Effort(given.scale, given.limit), given.directory
                    )
                except PeerFailed as error:
                    failures[f"{peer.name}, {workload}"] = str(error)
                    print(f"{workload:13} {peer.name:18} {error}", flush=True)
                    continue
                answers.setdefault((workload, peer.name), []).append(answer | {"load": load})
                told = answer.get("mean_us", answer.get("read_s"))
                print(f"{workload:13} {peer.name:18} {told:12.4g}  (load {load:.1f})", flush=True)
    lines = _head(answers) + table.ratios(answers) + table.tables(answers)
    if failures:
        lines += ["", "### not measured", ""]
        lines += [f"- {what}: {why}" for what, why in failures.items()]
    print("\n".join(lines))
    if given.page:
        put_into(given.page, "peers", lines)
    if given.json:
        _write(given.json, answers, failures)
    return 0


def _write(path: Path, answers: table.Answers, failures: dict[str, str]) -> None:
    rows = [
        {"workload": workload, "peer": peer, "runs": runs}
        for (workload, peer), runs in answers.items()
    ]
    content = {"commit": commit(), "python": platform.python_version(), "rows": rows}
    path.write_text(json.dumps(content | {"failures": failures}, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--only", nargs="+", choices=(*WORKLOADS, READ), help="these workloads")
    parser.add_argument("--peers", nargs="+", choices=[p.name for p in PEERS], help="these clients")
    parser.add_argument("--repeats", type=int, default=1, help="of everything; medians are printed")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls")
    parser.add_argument("--limit", type=float, default=2.0, help="seconds of one loop, at most")
    parser.add_argument("--directory", type=Path, help="on this disk (default: the temporary one)")
    parser.add_argument("--page", type=Path, help="have the tables in this page")
    parser.add_argument("--json", type=Path, help="write every answer here too")
    return parser.parse_args()


def _head(answers: table.Answers) -> list[str]:
    loads = [run["load"] for runs in answers.values() for run in runs]
    kept = {peer.name: peer.keeps for peer in PEERS}
    lines = [
        f"{machine(loads)} Times in microseconds where no other unit stands.",
        "",
        "| client | what `close` promises |",
        "|---|---|",
    ]
    return lines + [f"| {peer} | {kept[peer]} |" for peer in dict.fromkeys(p for _, p in answers)]


if __name__ == "__main__":
    sys.exit(main())
