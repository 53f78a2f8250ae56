"""What processes use: processor time, memory, children, bytes on the disk. Linux only.

Nothing but the standard library is imported: the environments of the peers run this too.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM = 1, 11, 12  # places in /proc/PID/stat behind the name


def _stat(pid: int) -> list[str]:
    """Fields behind the name; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_of(pid: int) -> float:
    """CPU seconds of another process, user and system; 0 when it is gone."""
    fields = _stat(pid)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS if fields else 0.0


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    """Resident memory now ("VmRSS") or at its highest ("VmHWM"), MB; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 / 1e6 if found else 0.0


def descendants(pid: int) -> list[int]:
    """Every living child of a process, and theirs."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def family_cpu_s(others: Iterable[int] = ()) -> float:
    """CPU seconds of this process, its children, dead or alive, and the others."""
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(cpu_of(pid) for pid in (*descendants(os.getpid()), *others))
    return time.process_time() + dead.ru_utime + dead.ru_stime + living


def disk_bytes(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
