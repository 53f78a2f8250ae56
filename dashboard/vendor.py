"""Bring the dashboard's three libraries into the package, or check that they are what they were.

``python -m dashboard.vendor`` fetches the versions of ``vendor.lock.json`` by their names through
npm, rewrites what a browser without a bundler needs, and records the hashes. ``--check`` compares
what lies in the package with those hashes; with ``--fetch`` also with what npm gives today.

Rewritten are bare module names (a browser would need an inline import map, which the content
security policy forbids) and source map comments (their files are not shipped).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOCK = HERE / "vendor.lock.json"
TARGET = HERE.parent / "metrana_async" / "server" / "web" / "vendor"
_BARE_NAMES = {b'from"preact"': b'from"./preact.js"'}
_SOURCE_MAP = b"\n//# sourceMappingURL="


def main(arguments: list[str]) -> int:
    """Vendor or check; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dashboard.vendor", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    parser.add_argument("--fetch", action="store_true", help="compare with what npm gives, too")
    given = parser.parse_args(arguments)
    lock = json.loads(LOCK.read_text("utf-8"))
    problems = [] if not given.check else problems_of(lock)
    if given.fetch or not given.check:
        with tempfile.TemporaryDirectory() as folder:
            fetched = _fetch(lock, Path(folder))
        if given.check:
            problems += [
                f"{name}: npm gives other bytes"
                for name, content in fetched.items()
                if _digest(content) != lock["files"][name]["sha256"]
            ]
        else:
            _write(lock, fetched)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def problems_of(lock: dict[str, Any]) -> list[str]:
    """What in the package differs from the lock file."""
    there = {path.name for path in TARGET.iterdir()}
    problems = [
        f"{name} is in the package and not in the lock" for name in there - {*lock["files"]}
    ]
    for name, entry in lock["files"].items():
        if name not in there:
            problems.append(f"{name} is not in the package")
        elif _digest((TARGET / name).read_bytes()) != entry["sha256"]:
            problems.append(f"{name} was changed")
    return sorted(problems)


def _fetch(lock: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """The files as they are shipped, from archives whose integrity npm itself has checked."""
    archives: dict[str, Path] = {}
    for package, entry in lock["packages"].items():
        command = ["npm", "pack", "--json", f"{package}@{entry['version']}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=True)  # noqa: S603
        (packed,) = json.loads(done.stdout)
        known = entry.setdefault("integrity", packed["integrity"])
        if packed["integrity"] != known:
            raise SystemExit(f"{package} {entry['version']} is not what it was: {known}")
        archives[package] = folder / packed["filename"]
    made = {}
    for name, entry in lock["files"].items():
        parts = [_member(archives[package], path) for package, path in entry["from"]]
        made[name] = _for_browsers(b"\n".join(parts))
    return made


def _member(archive: Path, path: str) -> bytes:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(f"package/{path}")
        assert file is not None, path
        return file.read()


def _for_browsers(content: bytes) -> bytes:
    for bare, relative in _BARE_NAMES.items():
        content = content.replace(bare, relative)
    return content.split(_SOURCE_MAP, maxsplit=1)[0].rstrip() + b"\n"


def _write(lock: dict[str, Any], fetched: dict[str, bytes]) -> None:
    TARGET.mkdir(exist_ok=True)
    for name, content in fetched.items():
        (TARGET / name).write_bytes(content)
        lock["files"][name]["sha256"] = _digest(content)
    LOCK.write_text(json.dumps(lock, indent=2) + "\n", "utf-8")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
