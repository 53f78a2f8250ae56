"""Hands out run, writer and series numbers; a number given to a commit that failed is skipped."""

from __future__ import annotations

from metrana_async.server.store.base import PointStore


class Numbers:
    """The next unused numbers of a store. One owner thread."""

    def __init__(self, store: PointStore) -> None:
        self._run, self._writer, self._series = store.next_numbers()

    def take_run(self) -> int:
        """A fresh run_no."""
        self._run += 1
        return self._run - 1

    def take_writer(self) -> int:
        """A fresh writer_no."""
        self._writer += 1
        return self._writer - 1

    def take_series(self) -> int:
        """A fresh series_no."""
        self._series += 1
        return self._series - 1
