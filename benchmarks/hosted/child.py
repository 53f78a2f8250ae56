"""What runs in a client's own process: ``python -m benchmarks.hosted.child JOB`` (JSON).

A job names the adapter (`ours` or `theirs`) and the task; the answer is one JSON object in the
file ``answer`` of the job's directory, or no file where the process did not live to write it.
The diary beside it says how far it came.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.hosted.points import Diary, value_of, values_of

PATIENCE_S = 60.0
_FULL_DISK_S = 5.0
_YARDSTICK_BYTES = 4096


class Child:
    """One task of one client."""

    def __init__(self, job: dict[str, Any]) -> None:
        """Load the adapter of the job's client."""
        module = importlib.import_module(f"benchmarks.hosted.{job['client']}")
        directory = Path(job["directory"])
        self._job = job
        self._client = module.Client(job["run"], directory / "spool")
        self._diary = Diary(directory / "diary")
        self._answer = directory / job["answer"]

    def do(self) -> None:
        """Do the task and write the answer."""
        answer = getattr(self, f"_{self._job['task']}")()
        self._answer.write_text(json.dumps(answer))

    # --- tasks ------------------------------------------------------------------------------------
    def _forever(self) -> dict[str, Any]:
        """Log one value after the other, flushing once, until killed."""
        self._open()
        pause_s, flush_at = self._job["pause_s"], self._job["flush_at"]
        due_s = time.monotonic()
        while True:
            self._log()
            if self._diary.logged == flush_at:
                self._flush()
                due_s = time.monotonic()
            if pause_s:
                due_s += pause_s
                time.sleep(max(0.0, due_s - time.monotonic()))

    def _some(self) -> dict[str, Any]:
        """Log some values, flushing now and then, and close."""
        self._open()
        for _ in range(self._job["points"]):
            self._log()
            if self._diary.logged % self._job["flush_every"] == 0:
                self._flush()
        return self._close()

    def _arrays(self) -> dict[str, Any]:
        """Log arrays, more than the disk may take; flush; close."""
        self._open()
        size = self._job["array"]
        for first in range(0, self._job["points"], size):
            self._client.log(values_of(first, size), first)
            self._diary.logged += size
        error = ""
        try:
            self._flush(_FULL_DISK_S)
        except Exception as flush_error:
            error = f"flush: {_text(flush_error)}"
        return {"error": error} | self._close()

    def _leave(self) -> dict[str, Any]:
        """Log some values and let the program end, without close."""
        self._open()
        for _ in range(self._job["points"]):
            self._log()
        sys.exit(0)

    def _silenced(self) -> dict[str, Any]:
        """Log, have the server fall silent, log on, and close."""
        self._open()
        for _ in range(self._job["points"]):
            self._log()
        if self._diary.logged:
            self._flush()
        print("silence, please", flush=True)
        sys.stdin.readline()
        start_s = time.monotonic()
        for _ in range(self._job["points_more"]):
            self._log()
        return {"log_s": time.monotonic() - start_s} | self._close()

    def _flushes(self) -> dict[str, Any]:
        """How long a flush of one point takes, and beside it a bare write and fdatasync."""
        self._open()
        took_s, bare_s = [], []
        path = Path(self._job["directory"]) / "yardstick"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(self._job["points"]):
            self._log()
            start_s = time.perf_counter()
            self._flush()
            took_s.append(time.perf_counter() - start_s)
            start_s = time.perf_counter()
            os.write(handle, bytes(_YARDSTICK_BYTES))
            os.fdatasync(handle)
            bare_s.append(time.perf_counter() - start_s)
        os.close(handle)
        return {"flush_s": took_s, "bare_s": bare_s} | self._close()

    def _deliver(self) -> dict[str, Any]:
        """Deliver what lies in the spool."""
        try:
            return self._client.deliver(self._job["url"], self._job["key"])
        except Exception as error:
            return {"lost": 0, "said": "", "error": _text(error)}

    # --- steps ------------------------------------------------------------------------------------
    def _open(self) -> None:
        self._client.open(
            url=self._job.get("url"), key=self._job["key"], max_bytes=self._job.get("max_bytes")
        )

    def _log(self) -> None:
        step = self._diary.logged
        self._client.log(value_of(step), step)
        self._diary.logged = step + 1

    def _flush(self, timeout_s: float = PATIENCE_S) -> None:
        self._client.flush(timeout_s)
        self._diary.promised = self._diary.logged

    def _close(self) -> dict[str, Any]:
        start_s = time.monotonic()
        try:
            said = self._client.close(self._job["close_timeout_s"])
        except Exception as error:
            said = {"lost": 0, "said": "", "error": _text(error)}
        return said | {"close_s": time.monotonic() - start_s}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    Child(json.loads(sys.argv[1])).do()
