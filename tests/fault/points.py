"""Points that tell where they belong, and what must be found of them afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import metrana_sync_shim as metrana

GRID = 4
POINTS = 3 + GRID
"""Points of one item."""


def log_item(run: Any, k: int) -> None:
    """Log item `k`: a point on an automatic step, one on an explicit, one merged, and a block.

    An item that is stored twice shows as an automatic step too many and as a merged count of two.
    """
    run.log("auto", float(k))
    run.log("explicit", float(k), step=k)
    run.log_distributed("merged", float(k), step=k)
    run.log_rl_environment_step("grid", [float(GRID * k + i) for i in range(GRID)], k, "a", 0)


@dataclass(frozen=True)
class Found:
    """Items of a run that the server has, by the series they were read from."""

    auto: list[int]
    explicit: list[int]
    merged: list[int]
    grid: list[int]

    def check_whole(self, count: int) -> None:
        """Exactly the items 0 … count - 1, each once and in order, in every series."""
        line = list(range(count))
        for name in ("auto", "explicit", "merged"):
            found = getattr(self, name)
            assert found == line, f"{name}: {_difference(found, line)}"
        cells = list(range(GRID * count))
        assert self.grid == cells, f"grid: {_difference(self.grid, cells)}"

    def check_prefix(self, kept: int, logged: int) -> int:
        """Gapless beginnings: at least `kept` items, at most `logged`; returns the shortest.

        A process that dies in the middle of an item leaves one series longer than another.
        """
        lengths = [len(self.auto), len(self.explicit), len(self.merged), len(self.grid) // GRID]
        for name, scale in (("auto", 1), ("explicit", 1), ("merged", 1), ("grid", GRID)):
            found = getattr(self, name)
            assert found == list(range(len(found))), f"{name}: {_difference(found, [])}"
            assert scale * kept <= len(found) <= scale * logged, (name, len(found), kept, logged)
        return min(lengths)

    def check_part(self, logged: int) -> None:
        """No item twice, none out of order, none that was not logged."""
        for name, scale in (("auto", 1), ("explicit", 1), ("merged", 1), ("grid", GRID)):
            found = getattr(self, name)
            assert found == sorted(set(found)), f"{name} is doubled or reordered: {found}"
            assert set(found) <= set(range(scale * logged)), name

    @property
    def points(self) -> int:
        return len(self.auto) + len(self.explicit) + len(self.merged) + len(self.grid)


def find(reader: metrana.QueryClient, run: str = "run") -> Found:
    """Read everything back; what is read twice in one place fails here."""
    names = {info.metric for info in reader.metrics(run)}
    auto = reader.series(run, "auto") if "auto" in names else None
    explicit = reader.series(run, "explicit") if "explicit" in names else None
    merged = reader.merged(run, "merged") if "merged" in names else None
    grid = reader.env_series(run, "grid", env_id="a", episode=0) if "grid" in names else None
    if auto is not None:
        assert auto.step.tolist() == list(range(len(auto.step)))
    if explicit is not None:
        assert explicit.step.tolist() == explicit.value.astype(int).tolist()
    if merged is not None:
        assert set(merged.count.tolist()) <= {1}, "a merged point was stored twice"
        assert merged.step.tolist() == merged.last.astype(int).tolist()
    assert reader.ledger(run).difference == 0
    return Found(
        [] if auto is None else auto.value.astype(int).tolist(),
        [] if explicit is None else explicit.value.astype(int).tolist(),
        [] if merged is None else merged.step.tolist(),
        [] if grid is None else grid.value.astype(int).tolist(),
    )


def _difference(found: list[int], line: list[int]) -> str:
    missing = sorted(set(line) - set(found))[:10]
    doubled = sorted({k for k in found if found.count(k) > 1})[:10] if len(found) < 5000 else []
    return f"{len(found)} for {len(line)}; missing {missing}, doubled {doubled}"
