"""The tail: what was committed and is not sealed yet, in memory, by unit.

Owned by the owner thread, read by any: a reader takes a unit's entries as they are at one moment
(`snapshot`), and what it took never changes. Small tables of one writer are joined as they come,
so that a unit fed one point a commit does not become tens of thousands of arrays.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from metrana_async.server.store.base import AcceptedPoints, AcceptedSegments
from metrana_async.server.store.sqlite.codec import constant, is_constant
from metrana_async.server.store.sqlite.units import NO_UNIT
from metrana_async.wire.model import Int64Array

Table = AcceptedPoints | AcceptedSegments

_POINT_INTEGERS: Final = ("series_no", "env_no", "step", "rl_step", "time_ms")
_SEGMENT_INTEGERS: Final = (
    *("env_no", "episode", "generation", "rl_step", "minor", "step", "count", "time_ms"),
)

_JOIN_COUNT: Final = 32
_JOIN_ROWS: Final = (1_024, 32_768)
"""At most so many points come of a join, by level."""
_TABLE_BYTES: Final = 1_500
"""What the objects around a table's columns weigh."""
_PLAIN_ROWS: Final = 16
"""Columns this short are kept as they are."""


class Entry(NamedTuple):
    """A table, the last log row it is from, and how often it was joined."""

    log_no: int
    table: Table
    level: int = 0


@dataclass(slots=True)
class UnitTail:
    """Entries of one unit in order of arrival."""

    first_log_no: int
    entries: list[Entry] = field(default_factory=list)
    points_count: int = 0
    nbytes: int = 0
    key_low: int = 2**63 - 1
    key_high: int = -1
    since_s: float | None = None
    """When `due` first saw it, by the caller's clock."""
    _alike_count: int = 0
    """Entries at the end that could be joined."""

    @property
    def keys_span(self) -> int:
        """At most so many keys (environments, or STANDARD series) have points here."""
        return self.key_high - self.key_low + 1

    def add(self, log_no: int, table: Table) -> None:
        """Append one table, which has rows."""
        keys = table.env_no if _has_envs(table) else table.series_no
        self.key_low = min(self.key_low, int(np.min(keys)))
        self.key_high = max(self.key_high, int(np.max(keys)))
        newest = self.entries[-1] if self.entries else None
        is_alike = newest is not None and newest.level == 0 and _can_join(newest.table, table)
        self._alike_count = self._alike_count + 1 if is_alike else 1
        self.entries.append(Entry(log_no, table))
        self.points_count += len(table.value)
        self.nbytes += _table_bytes(table)
        if self._alike_count == _JOIN_COUNT:
            self._alike_count = 0
            self._join()

    def _join(self) -> None:
        """Join the newest entries, and what comes of it with its like."""
        for level, rows_max in enumerate(_JOIN_ROWS):
            newest = self.entries[-_JOIN_COUNT:]
            tables = [entry.table for entry in newest]
            if (
                len(newest) < _JOIN_COUNT
                or any(entry.level != level for entry in newest)
                or not all(_can_join(tables[0], table) for table in tables)
                or sum(len(table.value) for table in tables) > rows_max
            ):
                return
            columns: dict[str, Any] = {
                name: np.concatenate([getattr(table, name) for table in tables])
                for name in _columns(tables[0])
            }
            table = _owned(dataclasses.replace(tables[0], **columns))
            self.nbytes += _table_bytes(table) - sum(map(_table_bytes, tables))
            self.entries[-_JOIN_COUNT:] = [Entry(newest[-1].log_no, table, level + 1)]


class Tail:
    """Every unit's unsealed tables."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._units: dict[int, UnitTail] = {}

    def snapshot(self, unit_no: int) -> list[Entry]:
        """The unit's entries now; a list of the caller's own."""
        with self._lock:
            unit = self._units.get(unit_no)
            return [] if unit is None else list(unit.entries)

    def units(self) -> dict[int, UnitTail]:
        """Units that have a tail. For the owner thread."""
        return self._units

    @property
    def nbytes(self) -> int:
        """Memory held, roughly. For the owner thread."""
        return sum(unit.nbytes for unit in self._units.values())

    def run_tables(self, run_no: int) -> list[Table]:
        """The tables of all units of a run, each unit's in order; a list of the caller's own."""
        with self._lock:
            return [
                entry.table
                for unit in self._units.values()
                if unit.entries and unit.entries[0].table.run_no == run_no
                for entry in unit.entries
            ]

    def first_log_no(self, *, besides: Container[int]) -> int | None:
        """The oldest log row that a unit other than these still needs, or None."""
        rows = (u.first_log_no for unit_no, u in self._units.items() if unit_no not in besides)
        return min(rows, default=None)

    def append(self, log_no: int, tables: Iterable[Table], unit_of: Int64Array) -> None:
        """Add one commit's tables; readers see all of them or none.

        `unit_of` is int64, the unit by series_no; points of NO_UNIT are left out.
        """
        placed: list[tuple[int, Table]] = []
        for table in tables:
            if len(table.value) == 0:
                continue
            owned = _owned(table)
            if isinstance(owned, AcceptedPoints):
                placed += split_by_unit(owned, unit_of)
            else:
                placed.append((int(unit_of[owned.series_no]), owned))
        with self._lock:
            for unit_no, table in placed:
                if unit_no == NO_UNIT:
                    continue
                if unit_no not in self._units:
                    self._units[unit_no] = UnitTail(log_no)
                self._units[unit_no].add(log_no, table)

    def drop(self, unit_no: int) -> None:
        """Forget a unit's entries: all of them are in tiles."""
        with self._lock:
            self._units.pop(unit_no, None)


def _has_envs(table: Table) -> bool:
    return isinstance(table, AcceptedSegments) or table.has_envs


def _columns(table: Table) -> tuple[str, ...]:
    if isinstance(table, AcceptedPoints):
        return (*_POINT_INTEGERS, "value")
    if table.point_time_ms is None:
        return (*_SEGMENT_INTEGERS, "value")
    return (*_SEGMENT_INTEGERS, "value", "point_time_ms")


def _owned(table: Table) -> Table:
    """The table with columns that hold no foreign memory alive, and constants at no cost.

    A value column is often a view of a whole request: one slow series would keep megabytes of its
    neighbours in memory.
    """
    columns: dict[str, Any] = {}
    for name in _columns(table):
        column = getattr(table, name)
        if name != "value" and len(column) > _PLAIN_ROWS and column[0] == column[-1]:
            first = column[0]
            if bool((column == first).all()):
                columns[name] = constant(int(first), len(column))
                continue
        columns[name] = column if column.flags.owndata else column.copy()
    return dataclasses.replace(table, **columns)


def _table_bytes(table: Table) -> int:
    columns = (getattr(table, name) for name in _columns(table))
    return _TABLE_BYTES + sum(int(c.nbytes) for c in columns if not is_constant(c))


def _can_join(a: Table, b: Table) -> bool:
    if isinstance(a, AcceptedSegments) and isinstance(b, AcceptedSegments):
        same_times = (a.point_time_ms is None) == (b.point_time_ms is None)
        return same_times and a.writer_no == b.writer_no and a.mode is b.mode
    return type(a) is type(b) and a.writer_no == b.writer_no


def split_by_unit(table: AcceptedPoints, unit_of: Int64Array) -> list[tuple[int, AcceptedPoints]]:
    """Cut a table into one per unit, rows in arrival order; `unit_of` is int64 by series_no."""
    units = unit_of[table.series_no]
    if bool((units == units[0]).all()):
        return [(int(units[0]), table)]
    if not bool((units[1:] >= units[:-1]).all()):
        order = np.argsort(units, kind="stable")
        units = units[order]
        table = _take(table, order)
    cuts = np.flatnonzero(units[1:] != units[:-1]) + 1
    edges = [0, *cuts.tolist(), len(units)]
    return [
        (int(units[low]), _take(table, slice(low, high))) for low, high in itertools.pairwise(edges)
    ]


def _take(table: AcceptedPoints, selection: Any) -> AcceptedPoints:
    columns: list[Any] = [getattr(table, name)[selection] for name in _columns(table)]
    fields: list[Any] = [table.run_no, table.writer_no, *columns, table.has_envs]
    return AcceptedPoints(*fields)
