"""`python -m tests.conformance FILE.jsonl [--late | --offline] [--only ID ...]`, cases by hand.

One line a case (`ok ID about` or `FAILED ID ...`), then a count; exit status 1 if any failed.
Each case runs twice: with lists and with numpy arrays where that keeps the values' types.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conformance.cases import STANDARD_FILE, read_cases
from tests.conformance.runner import Runner, summary


def main(arguments: list[str]) -> int:
    """Run a file of cases; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=STANDARD_FILE)
    parser.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument(
        "--late", action="store_true", help="deliver killed processes' last batches late"
    )
    parser.add_argument(
        "--offline", action="store_true", help="log every letter offline, and sync at the end"
    )
    parser.add_argument("--only", nargs="+", metavar="ID", help="run these cases only")
    options = parser.parse_args(arguments)
    outcomes: dict[str, str] = {}
    with Runner(store=options.store, late=options.late, offline=options.offline) as runner:
        for case in read_cases(options.file):
            if options.only and case.id not in options.only:
                continue
            problem = ""
            for arrays in (False, True):
                try:
                    runner.run(case, arrays=arrays)
                except Exception as error:  # a broken case must not hide the others
                    problem = (
                        f"with {'arrays' if arrays else 'lists'}: {type(error).__name__}: {error}"
                    )
                    break
            outcomes[case.id] = problem
            print(
                f"FAILED {case.id} {problem}" if problem else f"ok {case.id} {case.about}",
                flush=True,
            )
    print(summary(outcomes))
    return 1 if any(outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
