"""The tail: what was committed and is not sealed yet, in memory, by unit.

Owned by the owner thread, read by any: a reader takes a unit's entries as they are at one moment
(`snapshot`), and what it took never changes. Small tables of one writer are joined as they come,
so that a unit fed one point a commit does not become tens of thousands of arrays.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from metrana_async.server.store.base import AcceptedPoints, AcceptedSegments
from metrana_async.wire.model import Int64Array

Table = AcceptedPoints | AcceptedSegments

_JOIN_COUNT: Final = 32
_JOIN_LEVELS: Final = 2
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

    entries: list[Entry] = field(default_factory=list)
    first_log_no: int = 0
    points_count: int = 0
    nbytes: int = 0
    key_low: int = 2**63 - 1
    key_high: int = -1
    since_s: float | None = None
    """When `due` first saw it, by the caller's clock."""

    @property
    def keys_span(self) -> int:
        """At most so many keys (environments, or STANDARD series) have points here."""
        return self.key_high - self.key_low + 1

    def add(self, log_no: int, table: Table) -> None:
        """Append one table, which has rows."""
        keys = table.env_no if _has_envs(table) else table.series_no
        self.key_low = min(self.key_low, int(np.min(keys)))
        self.key_high = max(self.key_high, int(np.max(keys)))
        self.entries.append(Entry(log_no, table))
        self.points_count += len(table.value)
        self.nbytes += _table_bytes(table)
        _join_newest(self)


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

    def first_log_no(self, *, besides: int) -> int | None:
        """The oldest log row that a unit other than this one still needs, or None."""
        rows = (u.first_log_no for unit_no, u in self._units.items() if unit_no != besides)
        return min(rows, default=None)

    def append(self, log_no: int, tables: list[tuple[int, Table]]) -> None:
        """Add one commit's tables, each with its unit; readers see all of them or none."""
        owned = [(unit_no, _owned(table)) for unit_no, table in tables]
        with self._lock:
            for unit_no, table in owned:
                unit = self._units.get(unit_no)
                if unit is None:
                    unit = self._units[unit_no] = UnitTail(first_log_no=log_no)
                unit.add(log_no, table)

    def drop(self, unit_no: int) -> None:
        """Forget a unit's entries: all of them are in tiles."""
        with self._lock:
            self._units.pop(unit_no, None)


def _has_envs(table: Table) -> bool:
    return isinstance(table, AcceptedSegments) or table.has_envs


def _array_names(table: Table) -> list[str]:
    return [
        f.name for f in dataclasses.fields(table) if isinstance(getattr(table, f.name), np.ndarray)
    ]


def _owned(table: Table) -> Table:
    """The table with columns that hold no foreign memory alive, and constants at no cost.

    A value column is often a view of a whole request: one slow series would keep megabytes of its
    neighbours in memory.
    """
    columns: dict[str, Any] = {}
    for name in _array_names(table):
        column = getattr(table, name)
        if name != "value" and len(column) > _PLAIN_ROWS and column[0] == column[-1]:
            first = column[0]
            if bool((column == first).all()):
                columns[name] = np.broadcast_to(np.int64(first), len(column))
                continue
        columns[name] = column if column.flags.owndata else column.copy()
    return dataclasses.replace(table, **columns)


def _table_bytes(table: Table) -> int:
    columns = (getattr(table, name) for name in _array_names(table))
    return _TABLE_BYTES + sum(int(c.nbytes) for c in columns if c.strides != (0,))


def _can_join(a: Table, b: Table) -> bool:
    if isinstance(a, AcceptedSegments) and isinstance(b, AcceptedSegments):
        same_times = (a.point_time_ms is None) == (b.point_time_ms is None)
        return same_times and a.writer_no == b.writer_no and a.mode is b.mode
    return type(a) is type(b) and a.writer_no == b.writer_no


def _join_newest(unit: UnitTail) -> None:
    """Join the newest entries when there are enough of one level, level by level."""
    for level in range(_JOIN_LEVELS):
        newest = unit.entries[-_JOIN_COUNT:]
        if len(newest) < _JOIN_COUNT or any(e.level != level for e in newest):
            return
        head = newest[0].table
        if not all(_can_join(head, e.table) for e in newest):
            return
        tables = [e.table for e in newest]
        if sum(len(t.value) for t in tables) > _JOIN_COUNT ** (level + 2):
            return
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(t, name) for t in tables]) for name in _array_names(head)
        }
        table = dataclasses.replace(head, **joined)
        unit.nbytes += _table_bytes(table) - sum(map(_table_bytes, tables))
        unit.entries[-_JOIN_COUNT:] = [Entry(newest[-1].log_no, table, level + 1)]


def split_by_unit(table: AcceptedPoints, unit_of: Int64Array) -> list[tuple[int, AcceptedPoints]]:
    """Cut a table into one per unit, rows in arrival order; `unit_of` is int64 by series_no."""
    units = unit_of[table.series_no]
    if len(units) == 0:
        return []
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
    columns = {name: getattr(table, name)[selection] for name in _array_names(table)}
    return dataclasses.replace(table, **columns)
