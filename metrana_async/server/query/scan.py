"""A long series piece by piece, in memory that does not grow with it.

A page is read by a range of steps that is widened until it holds enough rows, so what is read for a
page is a small multiple of it, whether steps are dense or far apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metrana_async.server.query import extents
from metrana_async.server.query.service import QueryService, SeriesColumns
from metrana_async.server.store.base import RunRow
from metrana_async.wire import limits

_WIDER: Final = 8


def scan_page(
    service: QueryService,
    run: RunRow,
    metric: str,
    *,
    scale: str,
    labels: Mapping[str, str],
    step_range: tuple[int, int] | None,
    limit: int,
) -> tuple[SeriesColumns, int | None]:
    """The first `limit` rows of a STANDARD series in a range, and the step to go on from.

    That step is None when the range has no more rows. Answers as `QueryService.series` does.
    """
    first, last = step_range or (0, limits.STEP_MAX)
    series = service.standard_series(run, metric, scale=scale, labels=labels)
    (highest,) = extents.last_steps(service.store, run.run_no, [series]).tolist()
    last = min(last, highest)
    width = limit
    while True:
        end = min(first + width - 1, last)
        columns = service.series(
            run, metric, scale=scale, labels=labels, step_range=(first, max(first, end))
        )
        if len(columns.step) >= limit or end >= last:
            break
        width *= _WIDER
    page = SeriesColumns(columns.step[:limit], columns.value[:limit], columns.time_ms[:limit])
    is_over = end >= last and len(columns.step) <= limit
    return page, None if is_over else int(page.step[-1]) + 1
