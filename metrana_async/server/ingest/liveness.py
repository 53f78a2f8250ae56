"""Whether a writer is live: what it said, when it was heard, and whether its process exists.

Only a process of this very machine, boot and pid namespace can be looked up; of any other the
heartbeat alone speaks.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from metrana_async.server.store.base import WriterRow
from metrana_async.wire import limits

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


class ProcessWatch:
    """Knows this machine and looks processes up in /proc.

    `live_s` is how old the last sign of life of a writer may be that counts as live.
    """

    def __init__(self, live_s: float = limits.WRITER_LIVE_S) -> None:
        self.live_s = live_s
        self._host = platform.node()
        self._boot_id = ""
        self._pid_namespace = 0
        try:
            self._boot_id = _BOOT_ID.read_text("ascii").strip()
            self._pid_namespace = os.stat(_PID_NAMESPACE).st_ino  # noqa: PTH116  # follows the link
        except OSError:
            # No /proc here: every process counts as one of another machine.
            self._pid_namespace = 0

    def is_gone(self, process: dict[str, Any]) -> bool:
        """True when the process of a `ProcessIdentity` is known to exist no more."""
        if not self._pid_namespace or not process.get("started_ticks"):
            return False
        here = (self._host, self._boot_id, self._pid_namespace)
        if (process.get("host"), process.get("boot_id"), process.get("pid_namespace")) != here:
            return False
        return started_ticks(int(process["pid"])) != int(process["started_ticks"])


def started_ticks(pid: int) -> int | None:
    """Kernel start time of a process in clock ticks after boot; None when there is none.

    A zombie has ended: nothing of it can write any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name in parentheses may hold anything; the fields behind the last one count from 3.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_replayed(row: WriterRow, *, now_ms: int, watch: ProcessWatch) -> bool:
    """True while somebody is handing in what an offline writer logged, which may go on logging."""
    if row.is_online or row.left is not None:
        return False
    return now_ms - row.seen_ms <= watch.live_s * 1000


def is_live(row: WriterRow, *, now_ms: int, watch: ProcessWatch) -> bool:
    """True while the writer may still be logging.

    Online, has not left, heard within `watch.live_s`, and its process not known to be gone.
    """
    if not row.is_online or row.left is not None:
        return False
    if now_ms - row.seen_ms > watch.live_s * 1000:
        return False
    return not watch.is_gone(row.process)
