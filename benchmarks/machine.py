"""Which commit is measured."""

from __future__ import annotations

import subprocess


def commit() -> str:
    """The commit of this checkout; "" where there is none."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
