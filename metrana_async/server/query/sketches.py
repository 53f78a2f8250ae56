"""Long curves from a store's summaries, and from points only where those do not tell.

What a store has summarised may be taken as it is where nothing else reaches into its steps: what
was logged again, before or after, and what the window cuts is read point by point. So a sketch says
what the points would, up to the rounding of sums in another order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from metrana_async.server.query import buckets as grid
from metrana_async.server.query.buckets import Buckets
from metrana_async.server.query.line_points import step_window
from metrana_async.server.query.service import QueryService, Range, SeriesColumns
from metrana_async.server.store.base import Outline, RunRow, SeriesRow
from metrana_async.wire import limits
from metrana_async.wire.model import ML_STEP, Int64Array, Ordering
from metrana_async.wire.statistics import StatisticsQuery

WORTH_POINTS: Final = 1 << 16
"""Fewer are read about as fast as summaries are looked for."""


class Sketch:
    """One STANDARD series within a window: how far it goes, and its buckets at any level."""

    def __init__(self, service: QueryService, series: SeriesRow, window: Range) -> None:
        """Read what is needed to know how far it goes; `is_worth_it` says whether to go on."""
        self._service = service
        self._series = series
        self._window = window
        outline = service.store.outline(series.series_no, window)
        outline = outline.take(np.argsort(outline.low, kind="stable"))
        is_whole = _stand_alone(outline, window)
        self._whole = outline.take(is_whole)
        self.is_worth_it = int(self._whole.count.sum()) >= WORTH_POINTS
        self._points = self._read(outline, ~is_whole) if self.is_worth_it else []

    @property
    def points_count(self) -> int:
        """Visible points."""
        return int(self._whole.count.sum()) + sum(len(part.step) for part in self._points)

    @property
    def ends(self) -> Int64Array:
        """The first and the last step: int64 [2]."""
        steps = [part.step for part in self._points if len(part.step)]
        low = min([int(self._whole.low[0]), *(int(step[0]) for step in steps)])
        high = max([int(self._whole.high[-1]), *(int(step[-1]) for step in steps)])
        return np.array([low, high], dtype=np.int64)

    def buckets(self, level: int) -> Buckets:
        """All points on the grid of a level."""
        places, rows = self._service.store.read_summaries(
            self._series.series_no, self._whole, level
        )
        points = self._points + self._read(self._whole, ~np.isin(self._whole.place, places))
        return grid.gather([rows, *(grid.summarise(p.step, p.value, level) for p in points)])

    def _read(self, outline: Outline, is_asked: np.ndarray) -> list[SeriesColumns]:
        """The visible points of these stretches; neighbours are read in one go."""
        starts = np.flatnonzero(is_asked & ~np.concatenate(([False], is_asked[:-1])))
        ends = np.flatnonzero(is_asked & ~np.concatenate((is_asked[1:], [False]))) + 1
        parts = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            steps = (
                max(int(outline.low[start:end].min()), self._window[0]),
                min(int(outline.high[start:end].max()), self._window[1]),
            )
            parts.append(self._service.series_of(self._series, steps))
        return parts


def sketch(
    service: QueryService, run: RunRow, metric: str, query: StatisticsQuery
) -> Sketch | None:
    """The curve that a query means, where it is long and summarised; None = read its points.

    Raises:
        NotFoundError: the run has no such series.
    """
    if query.axis != "step" or query.env_id is not None or query.all_envs:
        return None
    if query.episode is not None or query.generation is not None:
        return None  # refused where points are read
    series = service.standard_series(
        run, metric, scale=query.scale or ML_STEP, labels=query.labels or {}
    )
    if series.definition.ordering is Ordering.MERGE:
        return None
    made = Sketch(service, series, step_window(query) or (0, limits.STEP_MAX))
    return made if made.is_worth_it else None


def _stand_alone(outline: Outline, window: Range) -> np.ndarray:
    """Which stretches are summarised and inside the window, and no other reaches into them.

    The stretches are ordered by `low`.
    """
    is_summarised = (outline.count > 0) & (outline.low >= window[0]) & (outline.high <= window[1])
    if len(outline) < 2:
        return is_summarised
    is_behind = outline.low[1:] > np.maximum.accumulate(outline.high)[:-1]
    is_before = outline.high[:-1] < outline.low[1:]
    return is_summarised & np.concatenate(([True], is_behind)) & np.concatenate((is_before, [True]))
