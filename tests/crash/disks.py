"""File systems of a test's own: one that fills up, one whose power is cut."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, also of xfs."""
_NO_LOG_FLUSH = 2


def run(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(words, check=True, capture_output=True)


def mount(*words: str) -> None:
    """Mount, or skip the test: root in a container may not."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr.strip()}")


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[Path]:
    """A tmpfs of this size."""
    at.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(at))
    try:
        yield at
    finally:
        run("umount", "-l", str(at))


class LoopDisk:
    """An ext4 file system in a file, whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.image, self.at = folder / "disk.img", folder / "disk"
        self.at.mkdir()
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", "-F", str(self.image))
        self.is_mounted = False
        self.mount()

    def mount(self) -> None:
        """Mount; after a power cut this is the recovery of the file system."""
        mount("-o", "loop", str(self.image), str(self.at))
        self.is_mounted = True

    def cut_power(self) -> None:
        """From now on nothing reaches the disk, not even what the kernel already has."""
        top = os.open(self.at, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(top, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(top)

    def unmount(self) -> None:
        if self.is_mounted:
            run("umount", str(self.at))
            self.is_mounted = False

    def clear(self) -> None:
        if self.is_mounted:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("umount", "-l", str(self.at))


def fill(folder: Path) -> Path:
    """Take all the room there is; returns the file to remove."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", 0) as file:
        while True:
            file.write(b"\0" * 4096)
    return filler
