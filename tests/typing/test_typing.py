"""The public surface as type checkers see it: what they accept, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
USAGE, MISUSE = HERE / "api_usage.py", HERE / "api_misuse.py"
MYPY_LINE = re.compile(r"^(?P<path>.+?):(?P<line>\d+): error: (?P<text>.*)$", re.MULTILINE)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def mypy(path: Path, tmp_path: Path) -> dict[int, str]:
    """Errors of mypy --strict by line."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
         "--cache-dir", str(tmp_path / "cache"), "--config-file", str(ROOT / "pyproject.toml"),
         str(path)],
        capture_output=True, text=True, timeout=280, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    found = {}
    for match in MYPY_LINE.finditer(done.stdout):
        assert match["path"].endswith(path.name), match[0]
        found[int(match["line"])] = match["text"]
    return found


def pyright(path: Path, tmp_path: Path) -> dict[int, str]:
    """Errors of pyright (strict) by line."""
    pytest.importorskip("pyright")
    ready = subprocess.run(
        [sys.executable, "-m", "pyright", "--version"], capture_output=True, text=True, timeout=200
    )
    if ready.returncode != 0:
        pytest.skip(f"pyright cannot be set up here: {ready.stderr.strip()[-300:]}")
    shutil.copy(path, tmp_path)
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [path.name],
                "extraPaths": [str(ROOT)],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.10",
                "reportUnusedCoroutine": False,
                "reportUnusedExpression": False,
                "reportUnknownMemberType": False,
                "reportUnknownVariableType": False,
                "reportUnknownArgumentType": False,
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
         "-p", str(config)],
        capture_output=True, text=True, timeout=280, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert json.loads(done.stdout)["summary"]["filesAnalyzed"] == 1
    return {
        found["range"]["start"]["line"] + 1: found["message"]
        for found in json.loads(done.stdout)["generalDiagnostics"]
        if found["severity"] == "error"
    }


CHECKERS = {"mypy": mypy, "pyright": pyright}


@pytest.mark.parametrize("checker", CHECKERS)
def test_what_must_pass_passes(checker, tmp_path):
    """Every way to use the public surface is accepted, and has the type it says."""
    assert CHECKERS[checker](USAGE, tmp_path) == {}


@pytest.mark.parametrize("checker", CHECKERS)
def test_what_must_fail_fails(checker, tmp_path):
    """Every marked line is refused, and no other."""
    marked = {
        number
        for number, line in enumerate(MISUSE.read_text("utf-8").splitlines(), 1)
        if line.endswith("# error")
    }
    found = CHECKERS[checker](MISUSE, tmp_path)
    assert marked - found.keys() == set(), "accepted"
    assert found.keys() - marked == set(), found


def test_the_packages_say_that_they_are_typed():
    """Checkers read the annotations of both packages (PEP 561)."""
    for package in ("metrana_async", "metrana_sync_shim"):
        assert (ROOT / package / "py.typed").exists()


def test_the_checkers_are_there():
    """Mypy is part of the development environment, so its tests run and are not skipped."""
    assert shutil.which("mypy", path=str(Path(sys.executable).parent))
