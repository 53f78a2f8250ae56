"""The in-memory tail: joins, cuts and what it keeps alive."""

from __future__ import annotations

import dataclasses

import numpy as np

from metrana_async.server.store.base import AcceptedPoints
from metrana_async.server.store.sqlite.log_rows import decode_log_row, encode_log_row
from metrana_async.server.store.sqlite.tail import Tail, split_by_unit
from tests.unit.server.store.samples import World

UNITS = np.array([-1, 1])
"""Series 1 is unit 1."""


def one_row(step: int, *, writer_no: int = 1) -> AcceptedPoints:
    """One row of series 1."""
    zero = np.zeros(1, dtype=np.int64)
    value = np.array([step], dtype=np.float32)
    return AcceptedPoints(1, writer_no, zero + 1, zero, zero + step, zero, zero + 7, value)


def test_single_points_are_joined() -> None:
    """Thousands of one-row commits become few tables, in order and with the last log row."""
    tail = Tail()
    for step in range(5_000):
        tail.append(step + 1, [one_row(step)], UNITS)
    entries = tail.snapshot(1)
    assert len(entries) < 100
    assert np.concatenate([e.table.step for e in entries]).tolist() == list(range(5_000))
    assert entries[-1].log_no == 5_000
    assert [e.log_no for e in entries] == sorted(e.log_no for e in entries)
    assert tail.units()[1].points_count == 5_000
    assert tail.nbytes < 2_000_000


def test_tables_of_two_writers_stay_apart() -> None:
    """Rows of different writers are never joined: a table has one writer."""
    tail = Tail()
    for step in range(200):
        tail.append(step + 1, [one_row(step, writer_no=step % 2)], UNITS)
    assert len(tail.snapshot(1)) == 200


def test_a_snapshot_does_not_change() -> None:
    """What a reader took stays as it was while entries are joined and dropped."""
    tail = Tail()
    for step in range(31):
        tail.append(step + 1, [one_row(step)], UNITS)
    before = tail.snapshot(1)
    tail.append(32, [one_row(31)], UNITS)
    assert (len(before), len(tail.snapshot(1))) == (31, 1)
    tail.drop(1)
    assert len(before) == 31
    assert tail.snapshot(1) == []


def test_a_view_does_not_keep_its_request_alive() -> None:
    """Columns that are views of a larger buffer are copied; constants take no memory."""
    request = np.zeros(10_000_000, dtype=np.float32)
    table = World(1).standard_points(1_000)
    table = dataclasses.replace(table, value=request[:1_000])
    tail = Tail()
    tail.append(1, [table], np.ones(100, dtype=np.int64))
    (entry,) = tail.snapshot(1)
    assert not np.shares_memory(entry.table.value, request)
    assert entry.table.env_no.strides == (0,)
    assert tail.nbytes < 40_000


def test_a_table_is_cut_by_unit_in_arrival_order() -> None:
    """Rows go to their series' unit and keep their order there."""
    table = World(3).standard_points(500)
    unit_of = np.arange(100) // 7
    parts = split_by_unit(table, unit_of)
    assert sorted(no for no, _ in parts) == sorted(set((table.series_no // 7).tolist()))
    for unit_no, part in parts:
        keep = unit_of[table.series_no] == unit_no
        np.testing.assert_array_equal(part.step, table.step[keep])
        np.testing.assert_array_equal(part.value, table.value[keep])


def test_log_rows_round_trip() -> None:
    """Every column of every table of a commit comes back as it was."""
    world = World(4)
    points = [world.standard_points(33), world.episode_points(5), world.standard_points(1)]
    segments = [world.segments(7) for _ in range(6)]
    found = decode_log_row(encode_log_row(points, segments))
    for got, expected in zip(found, (*points, *segments), strict=True):
        for field in dataclasses.fields(expected):
            a, b = getattr(got, field.name), getattr(expected, field.name)
            np.testing.assert_array_equal(a, b)
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
