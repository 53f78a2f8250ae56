"""Episodes as runs and episodes as a grid say the same, cell by cell and segment by segment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metrana_async.columns.blocks import GridBlock
from metrana_async.columns.rl_grid import grid_columns
from metrana_async.columns.spans import EpisodeSpans, episode_spans
from metrana_async.errors import InvalidStepError
from metrana_async.writers.numbering import MinorNumbering
from metrana_async.writers.segments import cut_segments

DTYPES = st.sampled_from([np.int64, np.int32, np.uint8, np.uint64])
GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 7)).flatmap(
    lambda shape: DTYPES.flatmap(lambda d: hnp.arrays(d, shape, elements=st.integers(0, 3)))
)


@given(GRIDS)
def test_runs_stand_for_the_grid(episode):
    """Runs unfold to the grid they were made of, whatever its strides."""
    for grid in (episode, np.asfortranarray(episode), episode[::-1, ::-1]):
        spans = episode_spans(grid, "episode")
        assert np.array_equal(spans.as_grid(grid.shape), grid)
        assert spans.first[0] == 0


@given(GRIDS, st.sampled_from(["MT", "TM"]), st.sampled_from([None, 5, "rows"]))
def test_both_forms_are_cut_into_the_same_segments(episode, layout, env_step):
    """A numpy grid (runs) and the same nested list (grid) become equal segments."""
    m, t = episode.shape
    env_ids = tuple(f"e{i}" for i in range(m))
    value = np.arange(m * t, dtype=np.float32).reshape(m, t)
    steps = list(range(10, 10 + m)) if env_step == "rows" and m > 1 else env_step
    steps = None if steps == "rows" else steps
    turned = (lambda a: a.T) if layout == "TM" else (lambda a: a)
    columns = []
    for form in (turned(episode), turned(episode).tolist()):
        grid = grid_columns(turned(value), 3, env_ids, form, steps, now_ms=7, layout=layout)
        block = GridBlock(
            0, grid.mode, np.arange(m, dtype=np.int64), grid.value, grid.rl_step, grid.episode,
            grid.env_step, grid.mask, grid.time_ms,
        )  # fmt: skip
        (cut,) = cut_segments([block], MinorNumbering())
        columns.append((isinstance(grid.episode, EpisodeSpans), cut))
    (is_runs, a), (is_grid_runs, b) = columns
    assert is_runs
    assert not is_grid_runs
    for name in ("env", "episode", "rl_step", "start", "count", "time_ms", "value"):
        x, y = getattr(a, name), getattr(b, name)
        if name == "count" or len(x) == len(y):
            assert np.array_equal(x, y), name
        else:
            pytest.fail(f"{name} differs in length")


TOO_LOW = np.array([[0, 0, -2], [1, 1, 1]])
TOO_HIGH = np.array([[0, 0], [2**63, 2**63]], dtype=np.uint64)


@pytest.mark.parametrize(
    ("bad", "where"), [(TOO_LOW, r"episode\[0, 2\] is -2"), (TOO_HIGH, r"episode\[1, 0\] is 92233")]
)
def test_an_episode_out_of_range_is_named_by_position(bad, where):
    """The first cell out of range is named."""
    with pytest.raises(InvalidStepError, match=where):
        episode_spans(bad, "episode")
    value = np.zeros(bad.shape)
    with pytest.raises(InvalidStepError, match=where):
        grid_columns(value, 0, ("a", "b"), bad, now_ms=0)


def test_what_is_logged_is_not_the_callers_array():
    """Changing the episodes after the call changes nothing of the runs."""
    episode = np.zeros((2, 3), dtype=np.int64)
    grid = grid_columns(np.zeros((2, 3)), 0, ("a", "b"), episode, now_ms=0)
    episode[...] = 9
    assert grid.episode.as_grid((2, 3)).tolist() == [[0, 0, 0], [0, 0, 0]]
