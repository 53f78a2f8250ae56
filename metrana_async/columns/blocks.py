"""What one call hands over: owned columns, numbered by the run's registry. Immutable by agreement.

A block is made in the caller's thread, after validation and one copy, and is read by the engine
thread only. `series_no` and `env_no` are the run-level numbers of `writers.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metrana_async.columns.spans import EpisodeSpans
from metrana_async.wire.model import FloatArray, Int64Array, StepMode

ScalarItem = tuple[int, int, int, float]
"""The hot path: (series_no, step or AUTOMATIC, time_ms, value) of one STANDARD scalar.

`value` is a Python float (stored float32, float64 where it does not fit), int or bool (float64).
"""


@dataclass(slots=True)
class PointBlock:
    """n rows of one STANDARD or EPISODE series.

    Attributes:
        value: float32 or float64 [n], owned.
        step: AUTOMATIC, or k for k, k+1, …, or [n]; the episode for EPISODE series (there only
            AUTOMATIC or [n]).
        time_ms: one stamp for all, or [n].
        env_no, rl_step: [n] for EPISODE series, None for STANDARD.
    """

    series_no: int
    value: FloatArray
    step: int | Int64Array
    time_ms: int | Int64Array
    env_no: Int64Array | None = None
    rl_step: Int64Array | None = None

    @property
    def points_count(self) -> int:
        """Rows of the block."""
        return len(self.value)

    @property
    def nbytes(self) -> int:
        """Memory the block holds, roughly."""
        arrays = (self.value, self.step, self.time_ms, self.env_no, self.rl_step)
        return 200 + sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))


@dataclass(slots=True)
class GridBlock:
    """One `log_rl_environment_step` call on one ENV_STEP series: M environments × T env steps.

    Attributes:
        env_nos: int64 [M].
        value: float32 or float64 [M, T], C-contiguous, owned.
        rl_step: the training update of every point.
        episode: None (no episodes), one for all, [M] or [M, T], or the runs of [M, T] (then
            there is no mask and `env_step` is not exact).
        env_step: None under the automatic modes; EXPLICIT: int or [M] = start of each
            (env, episode) segment, [M, T] = exact.
        mask: bool [M, T], False = not a transition; None = all are.
        time_ms: one stamp, [M] or [M, T].
    Masked cells of every grid hold anything.
    """

    series_no: int
    mode: StepMode
    env_nos: Int64Array
    value: FloatArray
    rl_step: int
    episode: int | Int64Array | EpisodeSpans | None
    env_step: int | Int64Array | None
    mask: npt.NDArray[np.bool_] | None
    time_ms: int | Int64Array

    @property
    def points_count(self) -> int:
        """Points that exist: unmasked cells."""
        return self.value.size if self.mask is None else int(np.count_nonzero(self.mask))

    @property
    def nbytes(self) -> int:
        """Memory the block holds, roughly."""
        nbytes = 300 + self.value.nbytes
        for column in (self.episode, self.env_step, self.mask, self.time_ms):
            if not (column is None or isinstance(column, int)):
                nbytes += column.nbytes
        return nbytes
