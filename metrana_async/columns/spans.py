"""Episodes of a grid as runs: a rollout holds few episodes, so their ends say it all.

Copying and checking an int64 grid costs the caller more than its values do. Where every cell is a
point, finding where the episode changes is cheaper, and is what the engine wants to know anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metrana_async.columns.arrays import AnyArray, position_text
from metrana_async.errors import InvalidStepError
from metrana_async.wire.limits import STEP_MAX
from metrana_async.wire.model import Int64Array


@dataclass(slots=True)
class EpisodeSpans:
    """The episode of every cell of a grid [M, T], row-major, as k runs that do not cross rows.

    Attributes:
        first: int64 [k], the flat cell at which each run begins; ascending, from 0.
        episode: int64 [k], the episode of each run.
    """

    first: Int64Array
    episode: Int64Array

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        return int(self.first.nbytes + self.episode.nbytes)

    def as_grid(self, shape: tuple[int, ...]) -> Int64Array:
        """The grid that the runs stand for."""
        cells = int(np.prod(shape))
        return np.repeat(self.episode, np.diff(self.first, append=cells)).reshape(shape)


def episode_spans(episode: AnyArray, what: str) -> EpisodeSpans:
    """Runs of an integer array [M, T] of any strides; T is at least 1.

    Raises:
        InvalidStepError: an episode is not in 0..2**63-1, by position.
    """
    steps_count = episode.shape[1]
    if episode.flags.c_contiguous:
        # One long comparison: rows are too short for numpy to be quick about each.
        flat = episode.reshape(-1)
        begins = np.empty(flat.shape, dtype=bool)
        np.not_equal(flat[1:], flat[:-1], out=begins[1:])
        begins[::steps_count] = True
        first = begins.nonzero()[0]
        found = flat[first]
    else:
        begins = np.empty(episode.shape, dtype=bool)
        begins[:, 0] = True
        np.not_equal(episode[:, 1:], episode[:, :-1], out=begins[:, 1:])
        first = begins.reshape(-1).nonzero()[0]
        found = episode[first // steps_count, first % steps_count]
    # A cell out of range begins a run or lies behind its like, so looking at the runs is enough.
    is_bad = found < 0 if found.dtype.kind == "i" else found > STEP_MAX
    if np.count_nonzero(is_bad):
        at = int(np.argmax(is_bad))
        where = position_text(int(first[at]), episode.shape)
        raise InvalidStepError(f"{what}{where} is {found[at]}; it must be in 0..2**63-1")
    return EpisodeSpans(first, found.astype(np.int64, copy=False))
