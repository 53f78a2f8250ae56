"""`python -m benchmarks [--json FILE]`: the first numbers, as one table."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks.macro.first_numbers import measure


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rows = measure()
    print(f"{'what':58} {'figure':>12} {'unit':14} {'aim':>8}")
    for row in rows:
        aim = "" if row["aim"] is None else f"{row['aim']:g}"
        print(f"{row['what']:58} {row['figure']:12.4g} {row['unit']:14} {aim:>8}")
    if options.json:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        content = {
            "commit": commit.stdout.strip(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "rows": rows,
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
