"""Facts about cutting loads: parts are small, and together they are the load."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrana_async.delivery.splitting import split_load
from metrana_async.wire.model import (
    AttributeOp,
    AttributeUpdate,
    PointTable,
    SegmentTable,
    StepMode,
)


@dataclass
class Load:
    points: list = field(default_factory=list)
    segments: list = field(default_factory=list)
    attributes: list = field(default_factory=list)


def table(n: int, *, has_envs: bool = False) -> PointTable:
    column = np.arange(n, dtype=np.int64)
    envs = column % 3 if has_envs else None
    return PointTable(column % 7, column, column * 10, column.astype(np.float32), envs, envs)


def segment_table(counts: list[int], *, has_times: bool = False) -> SegmentTable:
    k, n = len(counts), sum(counts)
    column = np.arange(k, dtype=np.int64)
    return SegmentTable(
        series=4,
        mode=StepMode.AUTO,
        env=column % 5,
        episode=column,
        rl_step=column * 2,
        start=column * 100,
        count=np.array(counts, dtype=np.int64),
        time_ms=column + 1000,
        value=np.arange(n, dtype=np.float32),
        point_time_ms=np.arange(n, dtype=np.int64) if has_times else None,
    )


def expand(table: SegmentTable):
    """One row per point: env, episode, rl_step, number, time, value."""
    repeat = lambda column: np.repeat(column, table.count)  # noqa: E731
    ends = np.cumsum(table.count)
    position = np.arange(len(table.value)) - repeat(ends - table.count)
    times = repeat(table.time_ms) if table.point_time_ms is None else table.point_time_ms
    columns = (repeat(table.env), repeat(table.episode), repeat(table.rl_step))
    return list(
        zip(
            *(c.tolist() for c in (*columns, repeat(table.start) + position, times, table.value)),
            strict=True,
        )
    )


def test_a_small_load_is_one_part():
    """What fits stays together and is not copied."""
    load = Load([table(10)], [segment_table([3, 2])])
    (part,) = split_load(load)
    assert part.points[0] is load.points[0]
    assert part.segments[0] is load.segments[0]
    assert part.points_count == 15


@pytest.mark.parametrize("has_envs", [False, True])
def test_a_large_table_is_cut_between_rows(has_envs):
    """Parts of a point table hold its rows in order, each part within the target."""
    load = Load([table(10_000, has_envs=has_envs)])
    parts = list(split_load(load, 20_000))
    assert len(parts) > 10
    assert all(part.nbytes <= 20_000 for part in parts)
    for name in ("series", "step", "time_ms", "value", "env", "rl_step"):
        whole = getattr(load.points[0], name)
        pieces = [getattr(t, name) for part in parts for t in part.points]
        if whole is not None:
            assert np.array_equal(np.concatenate(pieces), whole)


@given(
    counts=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    target=st.integers(400, 4000),
    has_times=st.booleans(),
)
def test_cut_segments_say_the_same_points(counts, target, has_times):
    """A segment cut inside goes on where its first half ended, with the same env and episode."""
    whole = segment_table(counts, has_times=has_times)
    parts = list(split_load(Load(segments=[whole]), target))
    pieces = [t for part in parts for t in part.segments]
    assert [row for t in pieces for row in expand(t)] == expand(whole)
    assert all(int(t.count.sum()) == len(t.value) and t.count.min() >= 1 for t in pieces)
    assert all(part.nbytes <= max(target, 400) for part in parts)


def test_attributes_keep_their_order():
    """Updates are never cut, and stay in call order over parts."""
    updates = [AttributeUpdate(AttributeOp.SET, f"a/{n}", "x" * 500) for n in range(100)]
    parts = list(split_load(Load(attributes=updates), 5_000))
    assert len(parts) > 5
    assert [u for part in parts for u in part.attributes] == updates


def test_an_empty_load_is_no_part():
    """Nothing to carry makes no batch."""
    assert list(split_load(Load())) == []
