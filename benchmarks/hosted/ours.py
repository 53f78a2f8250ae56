"""The adapter of this client; `theirs` has the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import metrana_sync_shim as metrana
from benchmarks.hosted.points import METRIC

PROJECT = "side-by-side"


class Client:
    """One run, logged or delivered in this process."""

    def __init__(self, run: str, spool: Path) -> None:
        """Name the run and its spool directory."""
        self._run = run
        self._spool = spool

    def open(self, *, url: str | None, key: str, max_bytes: int | None) -> None:
        """Begin the run: offline, or at `url`; at most `max_bytes` on the disk."""
        quota = {} if max_bytes is None else {"quota_bytes": max_bytes}
        metrana.init(
            project_name=PROJECT,
            run_name=self._run,
            init_mode="offline" if url is None else "online",
            ingestion_url=url,
            api_key=key,
            disk=metrana.DiskConfig(path=str(self._spool), **quota),
        )

    def log(self, value: Any, step: int) -> None:
        """Log a value at a step, or an array of values at the steps from `step` on."""
        metrana.log(METRIC, value, step=step)

    def flush(self, timeout_s: float) -> None:
        """Return when everything logged is safe; raise otherwise."""
        statistics = metrana.flush(timeout_s)
        if statistics.losses:
            raise metrana.DataLossError(f"lost {statistics.losses}")

    def close(self, timeout_s: float) -> dict[str, Any]:
        """End the run: points said to be lost, and what else was said."""
        statistics = metrana.close(timeout_s).statistics
        if not statistics.is_balanced:
            raise AssertionError(f"the ledger does not balance: {statistics}")
        kept = f"{statistics.spooled} points kept on disk" if statistics.spooled else ""
        return {"lost": sum(statistics.losses.values()), "said": _said(statistics.losses, kept)}

    def deliver(self, url: str, key: str) -> dict[str, Any]:
        """Deliver what lies in the spool: points said to be lost, and what else was said."""
        reports = metrana.replay_spool(
            self._spool, run_name=self._run, ingestion_url=url, api_key=key
        )
        losses: dict[str, int] = {}
        for report in reports:
            for reason, points in report.statistics.losses.items():
                losses[reason] = losses.get(reason, 0) + points
        texts = "; ".join(f"{report.state} {report.text}".strip() for report in reports)
        return {"lost": sum(losses.values()), "said": _said(losses, texts)}


def _said(losses: dict[str, int], text: str) -> str:
    lost = ", ".join(f"{points} lost ({reason})" for reason, points in losses.items())
    return "; ".join(part for part in (lost, text) if part)
