"""Grids through `columns` and `writers`, judged by a model that looks at one point at a time."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metrana_async.columns.blocks import GridBlock
from metrana_async.columns.rl_grid import EnvIdCache, grid_columns
from metrana_async.wire.model import Family, Ordering, SegmentTable, SeriesDef, StepMode
from metrana_async.writers.collect import SeriesWriters
from metrana_async.writers.numbering import MinorNumbering
from metrana_async.writers.registry import SeriesRegistry

ENVS = ("a", "b", "c")


@st.composite
def calls(draw, mode):
    """Arguments of one call: ids, [M, T] value, rl_step, episode, env_step, mask, timestamp."""
    m = draw(st.integers(1, 3))
    t = draw(st.integers(1, 5))
    ids = list(draw(st.permutations(ENVS)))[:m]
    numbers = st.integers(0, 3)

    def column(elements, *, grid):
        shapes = [(), (m,)] + ([(m, t)] if grid else [])
        shape = draw(st.sampled_from(shapes))
        flat = draw(st.lists(elements, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        return flat[0] if shape == () else np.array(flat, dtype=np.int64).reshape(shape)

    mask = None
    if draw(st.booleans()):
        mask = np.array(draw(st.lists(st.booleans(), min_size=m * t, max_size=m * t)), bool)
        mask = mask.reshape(m, t)
    return {
        "ids": ids,
        "value": np.arange(m * t, dtype=np.float32).reshape(m, t) + draw(st.integers(0, 9)) * 100,
        "rl_step": draw(st.integers(0, 2)),
        "episode": column(numbers, grid=True),
        "env_step": column(numbers, grid=True) if mode is StepMode.EXPLICIT else None,
        "mask": mask,
        "timestamp": column(st.integers(0, 50), grid=True),
    }


def cell(column, row, t):
    """The element of a broadcast column that belongs to one cell."""
    array = np.asarray(column)
    return int(array if array.ndim == 0 else array[row] if array.ndim == 1 else array[row, t])


class Model:
    """One point at a time, as the semantics page tells it."""

    def __init__(self):
        self.units = {}
        self.points = defaultdict(list)

    def call(self, args):
        m, t_count = args["value"].shape
        steps = args["env_step"]
        for row in range(m):
            seen = defaultdict(int)
            for t in range(t_count):
                if args["mask"] is not None and not args["mask"][row, t]:
                    continue
                unit = (args["ids"][row], cell(args["episode"], row, t))
                if steps is None:
                    rl_step, following = self.units.get(unit, (None, 0))
                    number = following if rl_step == args["rl_step"] else 0
                    self.units[unit] = (args["rl_step"], number + 1)
                elif np.ndim(steps) == 2:
                    number = int(steps[row, t])
                else:
                    number = cell(steps, row, t) + seen[unit]
                seen[unit] += 1
                self.points[unit].append(
                    (
                        args["rl_step"],
                        number,
                        float(args["value"][row, t]),
                        cell(args["timestamp"], row, t),
                    )
                )


def expand(table: SegmentTable, registry):
    """The points of a table by (env id, episode), in order."""
    assert int(table.count.sum()) == len(table.value)
    assert (table.count > 0).all()
    points = []
    at = 0
    columns = (table.env, table.episode, table.rl_step, table.start, table.count, table.time_ms)
    for env, episode, rl_step, start, count, time_ms in zip(
        *map(np.ndarray.tolist, columns), strict=True
    ):
        for i in range(count):
            time = time_ms if table.point_time_ms is None else int(table.point_time_ms[at])
            point = (rl_step, start + i, float(table.value[at]), time)
            points.append(((registry.env_name(env), episode), point))
            at += 1
    return points


def play(program, flushes, mode, numbering=None):
    """Log the calls, collecting after those whose position is in `flushes`."""
    registry, cache = SeriesRegistry(), EnvIdCache()
    writers = SeriesWriters(registry, numbering)
    definition = SeriesDef(Family.ENV_STEP, "r", "ENVIRONMENT_STEP", (), Ordering.ORDERED, True)
    found = defaultdict(list)
    pending = []
    for position, args in enumerate(program):
        value = args["value"].copy()
        grid = grid_columns(
            value,
            args["rl_step"],
            cache.resolve(args["ids"]),
            args["episode"],
            args["env_step"],
            now_ms=0,
            mask=args["mask"],
            timestamp=args["timestamp"],
        )
        value[:] = -1.0  # the caller's array is not the block's
        if grid.points_count:
            number, env_nos = registry.claim_grid(definition, grid.env_ids, mode, mask=grid.mask)
            pending.append(
                GridBlock(
                    number,
                    mode,
                    env_nos,
                    grid.value,
                    grid.rl_step,
                    grid.episode,
                    grid.env_step,
                    grid.mask,
                    grid.time_ms,
                )
            )
        if position in flushes or position == len(program) - 1:
            for load in writers.collect(pending).values():
                for table in load.segments:
                    for unit, point in expand(table, registry):
                        found[unit].append(point)
            pending = []
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(calls(StepMode.AUTO), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_automatic_positions_are_those_of_the_model(program, flushes):
    """However calls fall into collects, each point gets the number the model gives it."""
    model = Model()
    for args in program:
        model.call(args)
    assert play(program, flushes, StepMode.AUTO) == model.points


@settings(max_examples=150, deadline=None)
@given(st.lists(calls(StepMode.EXPLICIT), min_size=1, max_size=5), st.sets(st.integers(0, 4)))
def test_explicit_steps_are_those_of_the_model(program, flushes):
    """Starts count unmasked points per (env, episode); exact grids keep their own numbers."""
    model = Model()
    for args in program:
        model.call(args)
    assert play(program, flushes, StepMode.EXPLICIT) == model.points


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=60
    )
)
def test_recent_units_survive_a_small_memory(program):
    """A unit used among the last few is continued, one forgotten starts at 0."""
    numbering = MinorNumbering(units_kept=4)
    taken = {}
    order = []
    for env, episode, count in program:
        unit = (env, episode)
        columns = [np.array([x], dtype=np.int64) for x in (env, episode, count)]
        start = int(numbering.starts(0, 5, *columns)[0])
        is_recent = unit in order[-4:]
        assert start in ({taken[unit]} if is_recent else {0, taken.get(unit, 0)})
        taken[unit] = start + count
        order = [u for u in order if u != unit] + [unit]
    assert len(numbering._displaced) <= 3 * 4
