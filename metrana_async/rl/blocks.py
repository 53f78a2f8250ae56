"""What the tracker makes of one rollout: where its points go, and which episodes ended in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from metrana_async.columns.arrays import AnyArray, BoolArray, to_numpy
from metrana_async.errors import InvalidShapeError
from metrana_async.rl.rollouts import Packing
from metrana_async.rl.segments import Segments
from metrana_async.wire.model import Int64Array

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EndedEpisodes:
    """N episodes that ended, as equal-length columns; in the order of their ends.

    Attributes:
        env: int64 [N], index of the environment.
        env_id: N ids.
        episode: int64 [N], the number.
        returns: float64 [N], sum of the rewards of the transitions, in float64.
        lengths: int64 [N], transitions.
        terminated: bool [N].
        truncated: bool [N]; both may be True. Neither is where the caller's reset ended it.
        column: int64 [N], the env step of the rollout with which it ended (of a long rollout: the
            how manieth row of its environment); -1 where it ended before the first.
    """

    env: Int64Array
    env_id: tuple[str, ...]
    episode: Int64Array
    returns: Float64Array
    lengths: Int64Array
    terminated: BoolArray
    truncated: BoolArray
    column: Int64Array

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def arguments(self) -> dict[str, Any]:
        """`env_id` and `episode` for `log_rl_episode`: ``value`` is any column of this."""
        return {"env_id": self.env_id, "episode": self.episode}


@dataclass(frozen=True)
class EpisodeBlock:
    """One rollout: the place of each of its points, and the episodes that ended.

    Grids have the shape of the caller's arrays, [M], [M, T] or [T, M]; of a long rollout (`envs=`)
    they are [B, T], one row for each environment in it, its rows left-aligned in time order.

    Attributes:
        env_id: the ids of the rows.
        reward: the rewards in the shape of the grids; the caller's own array where it has it
            already, not a copy.
        layout: "MT" or "TM", as `log_rl_environment_step` wants to know.
        ended: episodes that the environment ended.
        aborted: episodes that a reset of the caller ended (`resets=`); no statistics of episodes
            should count them.
    """

    env_id: tuple[str, ...]
    reward: AnyArray
    layout: str
    ended: EndedEpisodes
    aborted: EndedEpisodes
    _segments: Segments = field(repr=False)
    _numbers: Int64Array = field(repr=False)
    _first_step: Int64Array = field(repr=False)
    _packing: Packing | None = field(repr=False)
    _mask: BoolArray | None = field(repr=False)

    @cached_property
    def episode(self) -> Int64Array:
        """int64, the episode of each point."""
        return self._shaped(self._segments.paint(self._numbers))

    @cached_property
    def mask(self) -> BoolArray:
        """bool, False where a cell is no transition: it is not to be logged."""
        mask = np.ones(self._segments.shape, bool) if self._mask is None else self._mask
        return self._shaped(mask)

    @cached_property
    def env_step(self) -> Int64Array:
        """int64, the step of each point within its episode; 0 where there is no point.

        The server numbers the same way by itself; this is for those who want explicit steps.
        """
        segments = self._segments
        cells = np.arange(segments.shape[0] * segments.shape[1]).reshape(segments.shape)
        steps = cells + segments.paint(self._first_step - segments.start - segments.idle)
        return self._shaped(steps if self._mask is None else np.where(self._mask, steps, 0))

    @property
    def arguments(self) -> dict[str, Any]:
        """`env_id`, `episode`, `mask` and `layout` for `log_rl_environment_step`.

        ``value`` is `reward`, or `grid` of any other quantity of the rollout.
        """
        return {
            "env_id": self.env_id,
            "episode": self.episode,
            "mask": None if self._mask is None else self.mask,
            "layout": self.layout,
        }

    def grid(self, values: Any) -> AnyArray:
        """Lay another quantity of the same rollout on the grid of this block.

        Raises:
            InvalidShapeError: it does not have the shape that the rewards were given in.
            InvalidTypeError: it is no array.
        """
        array = np.asarray(values) if isinstance(values, list | tuple) else to_numpy(values, "grid")
        shape = self.reward.shape if self._packing is None else self._packing.shape
        if array.shape != shape:
            raise InvalidShapeError(
                f"the values have shape {list(array.shape)}, the rewards had {list(shape)}"
            )
        return array if self._packing is None else self._packing.pack(array)

    def _shaped(self, grid: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """From [B, T] to the shape of the rewards."""
        if self.reward.ndim == 1:
            return grid.reshape(-1)
        return grid.T if self.layout == "TM" else grid
