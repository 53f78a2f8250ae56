"""Where figures are kept: which commit they are of, and the page that shows them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path


def commit() -> str:
    """The commit of this checkout; "" where there is none."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def machine(loads: Iterable[float]) -> str:
    """The machine in words, with the load averages that were seen on it."""
    seen = list(loads) or [0.0]
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), CPython {platform.python_version()}, "
        f"load average {min(seen):.1f} to {max(seen):.1f}."
    )


def put_into(page: Path, name: str, lines: Sequence[str]) -> None:
    """Have these lines in the page in place of those between its two marks of that name.

    Raises:
        ValueError: it has no such marks.
    """
    begin, end = f"<!-- figures of {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, behind = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no marks {begin.strip()} and {end}")
    page.write_text("\n".join([before + begin, *lines, "", end + behind]))
