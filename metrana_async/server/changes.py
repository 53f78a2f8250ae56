"""Which runs changed since somebody looked: one counter, and what it was when each run changed.

Written by the ingest worker's thread after each commit, read by the event loop. It forgets with the
server: a reader who comes with another server's place is told to look at everything again.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from metrana_async.server.store.base import Commit, RunRow

_RUNS_COUNT: Final = 10_000


@dataclass(slots=True)
class _Changed:
    """A run, and the counter at its last change. `row` is None until somebody asks."""

    at: int
    row: RunRow | None
    is_deleted: bool = False


class ChangeFeed:
    """The changes of one store since its server began. Thread-safe, bounded in runs.

    Args:
        find: the row of a run by its number, None when there is none (any more).
    """

    def __init__(self, find: Callable[[int], RunRow | None]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._name = secrets.token_hex(4)
        self._count = 0
        self._forgotten = 0
        self._runs: OrderedDict[int, _Changed] = OrderedDict()

    def note(self, commit: Commit) -> None:
        """Take a commit into account; it is visible to readers already. Costs no reading."""
        touched = {table.run_no for table in commit.points}
        touched.update(segments.run_no for segments in commit.segments)
        touched.update(attribute.run_no for attribute in commit.attributes)
        touched.update(series.run_no for series in commit.series)
        touched.update(run_no for run_no, _, _ in commit.envs)
        rows = {row.run_no: row for row in commit.runs}
        deleted = {row.run_no for row in commit.deleted}
        if not (touched or rows or deleted):
            return
        with self._lock:
            self._count += 1
            for run_no in touched | rows.keys() | deleted:
                before = self._runs.pop(run_no, None)
                row = rows.get(run_no, before.row if before else None)
                self._runs[run_no] = _Changed(self._count, row, run_no in deleted)
            while len(self._runs) > _RUNS_COUNT:
                self._forgotten = self._runs.popitem(last=False)[1].at

    @property
    def place(self) -> str:
        """Where the feed is now; whoever has this place has seen everything."""
        with self._lock:
            return self._place()

    def since(self, place: str | None, workspace: str, project: str | None) -> dict[str, Any]:
        """What changed in a project behind a place, as a JSON object.

        ``cursor`` is the place reached. ``reset`` is true where the place is of no use (another
        server's, too old, None): then everything may have changed. ``runs`` has, by uid, `name`,
        `state` and `v` (grows with each change) of each run; a deleted one's state is "deleted".
        Blocks where a run has to be looked up.
        """
        with self._lock:
            count = self._number_in(place)
            is_reset = count is None or count < self._forgotten
            news = [] if count is None else self._behind(count)
            reached = self._place()
        found = {}
        for run_no, changed in news:
            row = changed.row
            if row is None:
                row = changed.row = self._find(run_no)
            if row is not None and row.workspace == workspace and project in (None, row.project):
                state = "deleted" if changed.is_deleted else row.state
                found[row.run_uid] = {"name": row.name, "state": state, "v": changed.at}
        return {"cursor": reached, "reset": is_reset, "runs": found}

    def _behind(self, count: int) -> list[tuple[int, _Changed]]:
        news = []
        for run_no in reversed(self._runs):  # the latest changes come last
            if self._runs[run_no].at <= count:
                break
            news.append((run_no, self._runs[run_no]))
        return news

    def _number_in(self, place: str | None) -> int | None:
        name, _, number = (place or "").partition("-")
        is_ours = name == self._name and number.isascii() and number.isdigit()
        return int(number[:18]) if is_ours else None

    def _place(self) -> str:
        return f"{self._name}-{self._count}"
