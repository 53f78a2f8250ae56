"""Break one place at a time and see it caught; see the package's docstring."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 300


def broken(text: str, mutant: Mutant) -> str:
    """The file with the bug in it."""
    if text.count(mutant.right) != 1:
        raise ValueError(
            f"{mutant.name!r}: its text stands {text.count(mutant.right)} times in {mutant.path}"
        )
    return text.replace(mutant.right, mutant.wrong)


def run_tests(root: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests against the packages in `root`."""
    there = [test for test in tests if (root / test).exists()]
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *there]
    environment = os.environ | {"PYTHONPATH": str(root), "HYPOTHESIS_PROFILE": "dev"}
    return subprocess.run(
        words, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def is_caught(mutant: Mutant) -> tuple[bool, str]:
    """Whether the tests fail with the bug in, and the last line they said."""
    with tempfile.TemporaryDirectory(prefix="metrana-mutant-") as folder:
        root = Path(folder)
        for name in ("metrana_async", "metrana_sync_shim", "tests", "pyproject.toml"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        path = root / mutant.path
        path.write_text(broken(path.read_text("utf-8"), mutant), "utf-8")
        try:
            done = run_tests(root, mutant.tests)
        except subprocess.TimeoutExpired:
            return True, f"hung for {TIMEOUT_S} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    # 1: tests failed. Anything else is no verdict: nothing was collected, usage, internal error.
    return done.returncode == 1, lines[-1] if lines else done.stderr[-200:]


def main() -> int:
    """Run all mutants, or those whose names contain a word."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", default="", help="mutants whose names contain this")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if given.only in mutant.name]
    started_s = time.monotonic()
    survivors = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, (caught, line) in zip(chosen, pool.map(is_caught, chosen), strict=True):
            print(f"{'caught  ' if caught else 'SURVIVED'}  {mutant.name}  [{line}]", flush=True)
            if not caught:
                survivors.append(mutant.name)
    took_s = time.monotonic() - started_s
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught in {took_s:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
