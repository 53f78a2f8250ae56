"""Which series are sealed together, as kept in memory. Owned by the owner thread.

A unit is 64 STANDARD series of a run, in order of appearance, or one RL series. Assignments are
prepared before a commit and adopted after it, so that a failed commit leaves no trace.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from metrana_async.errors import InternalError
from metrana_async.server.store.base import SeriesRow
from metrana_async.server.store.sqlite.catalogue import definition_from_text
from metrana_async.wire.model import Family, Int64Array

UNIT_SERIES_COUNT: Final = 64
ONE_GROUP: Final = 1 << 40
"""The group size of STANDARD units: every series falls into group 0."""
NO_UNIT: Final = -1
"""In place of a unit number: none."""


@dataclass(slots=True, eq=False)
class Unit:
    """One unit. `sealed` is the last log row whose points lie in tiles."""

    unit_no: int
    run_no: int
    is_standard: bool
    group_size: int | None
    sealed: int = 0
    series_nos: list[int] = field(default_factory=list)


class Units:
    """Every unit of the store, and the unit of every series."""

    def __init__(self) -> None:
        self.by_no: dict[int, Unit] = {}
        self.unit_of: Int64Array = np.full(64, NO_UNIT, dtype=np.int64)
        """Unit by series_no; replaced or written in place, safe to read from any thread."""
        self._filling: dict[int, Unit] = {}
        self._next_no = 1

    def load(self, connection: sqlite3.Connection) -> None:
        """Read what the database knows."""
        stored = {
            unit_no: (run_no, group_size, sealed)
            for unit_no, run_no, group_size, sealed in connection.execute("SELECT * FROM unit")
        }
        # Units of deleted runs are no units any more, yet their numbers must not come back, and
        # log rows that name their series may still be there.
        self._next_no = max(stored, default=0) + 1
        (gone_max,) = connection.execute("SELECT max(series_no_max) FROM deleted_run").fetchone()
        self._grow(gone_max or 0)
        found = connection.execute(
            "SELECT series_no, unit_no, definition FROM series ORDER BY series_no"
        )
        for series_no, unit_no, text in found:
            if unit_no not in self.by_no:
                run_no, group_size, sealed = stored[unit_no]
                is_standard = definition_from_text(text).family is Family.STANDARD
                self._add(Unit(unit_no, run_no, is_standard, group_size, sealed))
            self._place(series_no, self.by_no[unit_no])

    def find(self, series_no: int) -> Unit | None:
        """The unit of a series, or None for a series that was never committed."""
        unit_of = self.unit_of
        if not 0 <= series_no < len(unit_of):
            return None
        return self.by_no.get(int(unit_of[series_no]))

    def sealed_of(self) -> Int64Array:
        """The sealed mark of each series' unit: int64 by series_no."""
        marks = np.zeros(len(self.unit_of), dtype=np.int64)
        for unit in self.by_no.values():
            marks[unit.series_nos] = unit.sealed
        return marks

    def check(self, series_nos: Int64Array, placement: Placement) -> None:
        """InternalError when one of these series is neither stored nor about to be."""
        unit_of = self.unit_of
        low, high = (int(series_nos.min()), int(series_nos.max())) if len(series_nos) else (0, 0)
        if low > 0 and high < len(unit_of) and bool((unit_of[series_nos] != NO_UNIT).all()):
            return
        is_known = (series_nos >= 0) & (series_nos < len(unit_of))
        is_known[is_known] = unit_of[series_nos[is_known]] != NO_UNIT
        for series_no in np.unique(series_nos[~is_known]).tolist():
            if series_no not in placement.unit_of:
                raise InternalError(f"points of series {series_no}, which is not stored")

    def prepare(self, rows: Iterable[SeriesRow]) -> Placement:
        """Place the series of a commit; nothing changes until the placement is adopted."""
        placement = Placement()
        filling = {run_no: (unit, len(unit.series_nos)) for run_no, unit in self._filling.items()}
        next_no = self._next_no
        for row in rows:
            if row.series_no in placement.unit_of:
                continue
            known = self.find(row.series_no)
            if known is not None:
                placement.unit_of[row.series_no] = known.unit_no
                continue
            is_standard = row.definition.family is Family.STANDARD
            unit, count = filling.get(row.run_no, (None, 0)) if is_standard else (None, 0)
            if unit is None or count >= UNIT_SERIES_COUNT:
                group_size = ONE_GROUP if is_standard else None
                unit, count = Unit(next_no, row.run_no, is_standard, group_size), 0
                placement.new_units.append(unit)
                next_no += 1
            if is_standard:
                filling[row.run_no] = (unit, count + 1)
            placement.unit_of[row.series_no] = unit.unit_no
            placement.new_series.append((row.series_no, unit))
        return placement

    def adopt(self, placement: Placement) -> None:
        """Make a placement that was committed the truth."""
        for unit in placement.new_units:
            self._add(unit)
        for series_no, unit in placement.new_series:
            self._place(series_no, unit)

    def _add(self, unit: Unit) -> None:
        self.by_no[unit.unit_no] = unit
        self._next_no = max(self._next_no, unit.unit_no + 1)

    def of_run(self, run_no: int) -> list[int]:
        """The numbers of a run's units."""
        return [unit.unit_no for unit in self.by_no.values() if unit.run_no == run_no]

    def _grow(self, series_no: int) -> None:
        if series_no >= len(self.unit_of):
            grown = np.full(2 * series_no, NO_UNIT, dtype=np.int64)
            grown[: len(self.unit_of)] = self.unit_of
            self.unit_of = grown

    def _place(self, series_no: int, unit: Unit) -> None:
        self._grow(series_no)
        self.unit_of[series_no] = unit.unit_no
        unit.series_nos.append(series_no)
        if unit.is_standard:
            newest = self._filling.get(unit.run_no)
            if newest is None or newest.unit_no <= unit.unit_no:
                self._filling[unit.run_no] = unit


@dataclass(slots=True)
class Placement:
    """Where the series of one commit go. `unit_of` names old and new ones alike."""

    unit_of: dict[int, int] = field(default_factory=dict)
    new_units: list[Unit] = field(default_factory=list)
    new_series: list[tuple[int, Unit]] = field(default_factory=list)
