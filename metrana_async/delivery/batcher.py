"""From loads with run-level numbers to batches with page indexes. Pure, one owner.

A batch lists the pages it needs; `PageBook` chooses them. What a batch says never depends on what
was sent before it, so its bytes are good for memory, disk, wire and every retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from metrana_async.delivery.page_book import PageBook, PageChoice
from metrana_async.delivery.splitting import Load, Part, split_load
from metrana_async.wire.model import Batch, Int64Array, PointTable, SegmentTable, SeriesDef
from metrana_async.wire.pages import Page, encode_env_page, encode_series_page

_UNSEALED: Final = 0


class Batcher:
    """Makes the batches of one writer, for all its lanes.

    Batches come out without lane sequence (`seq` 0): `Lane.seal` numbers them.
    """

    def __init__(
        self,
        run_uid: str,
        writer_id: str,
        *,
        series_of: Callable[[int], SeriesDef],
        env_of: Callable[[int], str],
    ) -> None:
        """Make a batcher.

        Args:
            run_uid: 32 hex digits.
            writer_id: 32 hex digits.
            series_of: definition of a run-level series number.
            env_of: id of a run-level environment number.
        """
        self.run_uid = run_uid
        self.writer_id = writer_id

        def encode_series(numbers: Sequence[int]) -> Page:
            return encode_series_page([series_of(n) for n in numbers])

        def encode_envs(numbers: Sequence[int]) -> Page:
            return encode_env_page([env_of(n) for n in numbers])

        self._series_book = PageBook(encode_series)
        self._env_book = PageBook(encode_envs)

    def page(self, digest: str) -> Page | None:
        """A page that some batch of this batcher lists, or None when none does."""
        return self._series_book.page(digest) or self._env_book.page(digest)

    def batches(self, lane: int, load: Load) -> Iterator[Batch]:
        """Cut a load into unsealed batches of the lane, in order."""
        for part in split_load(load):
            yield self._batch(lane, part)

    def empty_batch(self, lane: int, lost: dict[str, int]) -> Batch:
        """An unsealed batch that carries nothing but a declaration of losses."""
        return Batch(self.run_uid, self.writer_id, lane, _UNSEALED, lost=dict(lost))

    def _batch(self, lane: int, part: Part) -> Batch:
        series = [table.series for table in part.points]
        series += [np.array([table.series], dtype=np.int64) for table in part.segments]
        envs = [table.env for table in part.points if table.env is not None]
        envs += [table.env for table in part.segments]
        series_pages = self._series_book.choose(_distinct(series))
        env_pages = self._env_book.choose(_distinct(envs))
        return Batch(
            run_uid=self.run_uid,
            writer_id=self.writer_id,
            lane=lane,
            seq=_UNSEALED,
            series_pages=series_pages.digests,
            env_pages=env_pages.digests,
            points=[_indexed_points(t, series_pages, env_pages) for t in part.points],
            segments=[_indexed_segments(t, series_pages, env_pages) for t in part.segments],
            attributes=part.attributes,
        )


def _distinct(columns: list[Int64Array]) -> Int64Array:
    """The numbers that occur, ascending. Run-level numbers are dense: marking beats sorting."""
    if not columns:
        return np.empty(0, dtype=np.int64)
    occurs = np.zeros(1 + max(int(column.max()) for column in columns), dtype=bool)
    for column in columns:
        occurs[column] = True
    return np.flatnonzero(occurs)


def _indexed_points(table: PointTable, series: PageChoice, envs: PageChoice) -> PointTable:
    env = None if table.env is None else envs.lookup[table.env]
    return replace(table, series=series.lookup[table.series], env=env)


def _indexed_segments(table: SegmentTable, series: PageChoice, envs: PageChoice) -> SegmentTable:
    return replace(table, series=int(series.lookup[table.series]), env=envs.lookup[table.env])
