"""Which release of this package runs here, and which of two is the older one."""

from __future__ import annotations

import functools
import re
from importlib import metadata


@functools.cache
def package_version() -> str:
    """The installed version; empty where the package was not installed."""
    try:
        return metadata.version("metrana-async")
    except metadata.PackageNotFoundError:
        return ""


def is_older(version: object, than: str) -> bool:
    """Whether one version is older; a version that says nothing is not."""
    ours, theirs = _numbers(version), _numbers(than)
    return bool(ours) and bool(theirs) and ours < theirs


def _numbers(version: object) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(version or ""))[:3])
