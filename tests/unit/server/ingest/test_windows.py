"""The memory of who wrote which visible row."""

from __future__ import annotations

import numpy as np

from metrana_async.server.ingest.windows import VisibleWindows
from tests.unit.server.ingest.helpers import i64

AXIS = (1, None)


def test_a_window_follows_random_writes() -> None:
    """What it answers is what a dict answers, inside its bounds; outside it does not know."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        windows, held = VisibleWindows(), {}
        first = np.unique(rng.integers(10, 40, int(rng.integers(0, 12))))
        held = dict.fromkeys(first.tolist(), 1)
        windows.put(AXIS, (10, 39), first, np.ones(len(first), np.int64))
        for writer in range(2, 8):
            steps = rng.integers(0, 50, int(rng.integers(1, 6)))
            windows.note(AXIS, steps, writer)
            held.update((s, writer) for s in steps.tolist() if 10 <= s <= 39)
            asked = np.unique(rng.integers(10, 40, 8))
            found = windows.find(AXIS, asked)
            assert found is not None
            answer = dict(zip(found[0].tolist(), found[1].tolist(), strict=True))
            assert answer == {s: held[s] for s in asked.tolist() if s in held}
        assert windows.find(AXIS, i64([9, 12])) is None
        assert windows.find((2, None), i64([12])) is None


def test_the_rows_kept_are_bounded() -> None:
    """The least recently used axis goes first."""
    windows = VisibleWindows(rows_kept=25)
    ten = np.arange(10, dtype=np.int64)
    for series_no in (1, 2):
        windows.put((series_no, None), (0, 9), ten, ten)
    assert windows.find((1, None), i64([3])) is not None
    windows.put((3, None), (0, 9), ten, ten)
    assert windows.find((2, None), i64([3])) is None
    assert windows.find((1, None), i64([3])) is not None
