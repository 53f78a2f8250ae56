"""The adapter of the hosted service's client; `ours` has the same shape.

Runs in an environment of its own, the only place where that client is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import metrana

from benchmarks.hosted.points import METRIC

PLACE = {"workspace_name": "default", "project_name": "side-by-side"}


class Client:
    """One run, logged or delivered in this process."""

    def __init__(self, run: str, spool: Path) -> None:
        """Name the run and its spool directory."""
        self._run = run
        self._spool = spool

    def open(self, *, url: str | None, key: str, max_bytes: int | None) -> None:
        """Begin the run: offline, or at `url`; at most `max_bytes` on the disk."""
        cap = {} if max_bytes is None else {"max_size_bytes": max_bytes}
        metrana.init(
            **PLACE,
            run_name=self._run,
            init_mode="offline" if url is None else "online_only",
            ingestion_url=url,
            api_key=key,
            disk=metrana.DiskConfig(str(self._spool), **cap),
            capture_system_metrics=False,
        )

    def log(self, value: Any, step: int) -> None:
        """Log a value at a step, or an array of values at the steps from `step` on."""
        metrana.log(METRIC, value, step=step)

    def flush(self, timeout_s: float) -> None:
        """Return when everything logged is safe; raise otherwise."""
        metrana.flush(timeout_s)

    def close(self, timeout_s: float) -> dict[str, Any]:
        """End the run: points said to be lost, and what else was said."""
        return _said(metrana.close(timeout_s))

    def deliver(self, url: str, key: str) -> dict[str, Any]:
        """Deliver what lies in the spool: points said to be lost, and what else was said."""
        return _said(
            metrana.replay_spool(
                str(self._spool),
                **PLACE,
                run_name=self._run,
                ingestion_url=url,
                api_key=key,
            )
        )


def _said(info: metrana.CloseInfo | None) -> dict[str, Any]:
    if info is None:
        return {"lost": 0, "said": ""}
    parts = [f"undelivered: {info.leftover_bytes} bytes"] if info.has_undelivered_spool else []
    return {"lost": int(info.metrics.float_points_dropped), "said": "; ".join(parts)}
