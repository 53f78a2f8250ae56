"""Where a server without a terminal writes: one file of bounded size, and the one before it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 1 << 20


class LogFile:
    """The file that is this process's output."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        """Name the file; nothing is opened yet.

        Args:
            path: appended to, mode 0600; its predecessor has ``.1`` added to its name.
            bytes_max: beyond so much a new file is begun.
        """
        self._path = path
        self._before = path.with_name(path.name + ".1")
        self._bytes_max = bytes_max

    def adopt(self) -> None:
        """Send standard output and error there."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            os.dup2(file, stream)
        os.close(file)

    def keep_bounded(self) -> None:
        """Begin a new file where this one is full, or where it was taken away."""
        with contextlib.suppress(OSError):  # a full disk: the old file goes on
            try:
                if self._path.stat().st_size <= self._bytes_max:
                    return
                self._path.replace(self._before)
            except FileNotFoundError:
                pass
            self.adopt()
