"""EpisodeTracker: rewards and ends of a vectorised environment in, points and episodes out.

Owns, for each environment, the open episode: its number, transitions and return so far, and
whether an end waits for the environment's reset. A call that raises changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from metrana_async.columns.integers import coerce_integer, coerce_integers, is_scalar
from metrana_async.columns.names import check_env_ids
from metrana_async.errors import InvalidShapeError, InvalidTypeError, ValidationError
from metrana_async.rl.blocks import EndedEpisodes, EpisodeBlock
from metrana_async.rl.following import Closed, OpenEpisodes, Outcome, abort, follow
from metrana_async.rl.numbers import EpisodeAllocator, EpisodeNumbers
from metrana_async.rl.rollouts import Rollout, read_rollout
from metrana_async.rl.segments import Autoreset, Segments
from metrana_async.wire.model import Int64Array

_FLAGS: Final = ("end", "start")


class EpisodeTracker:
    """Turns what `env.step` returned into what the RL logging functions take.

    ::

        tracker = EpisodeTracker(env_ids, "next_step")
        block = tracker.update(rewards, terminations, truncations, layout="TM")
        metrana.log_rl_environment_step("reward", rewards, rl_step=k, **block.arguments)
        ended = block.ended
        metrana.log_rl_episode("episode_return", ended.returns, rl_step=k, **ended.arguments)

    Feed it every step of every environment, in order, in rollouts of any length: where a rollout
    ends changes nothing. The cost is a few passes over the arrays, and a little for each episode.

    Args:
        envs: ids of the M environments, distinct; or M, for ``env0 .. env{M-1}``.
        autoreset: an `Autoreset`, its name, or gymnasium's ``env.metadata["autoreset_mode"]``.
        first_episode: number of the first episode, one or [M]. After a resume: the last known
            + 1, as an episode that was cut off is not continued.
        first_env_step: what `EpisodeBlock.env_step` calls an episode's first step: 0 or 1.
        numbers: where numbers come from instead: `EpisodeAllocator` or `EpisodeLeases`, for
            workers that share environment ids.

    Raises:
        ValidationError: an argument is not acceptable.

    Not thread-safe. Pickles with its state.
    """

    def __init__(
        self,
        envs: int | Sequence[str],
        autoreset: Any,
        *,
        first_episode: Any = 0,
        first_env_step: int = 0,
        numbers: EpisodeNumbers | None = None,
    ) -> None:
        if isinstance(envs, str):
            raise InvalidTypeError(f"envs is the str {envs!r:.60}; it is a list of ids, or a count")
        if isinstance(envs, Sequence | np.ndarray):
            self.env_ids = check_env_ids(envs)
        else:
            self.env_ids = tuple(f"env{i}" for i in range(coerce_integer(envs, "envs")))
        if not self.env_ids:
            raise ValidationError("envs is empty; a tracker follows at least one environment")
        self.autoreset = Autoreset.of(autoreset)
        self.first_env_step = coerce_integer(first_env_step, "first_env_step")
        if self.first_env_step > 1:
            raise ValidationError(f"first_env_step is {first_env_step}; it is 0 or 1")
        if numbers is None:
            numbers = EpisodeAllocator(first=self._first_episodes(first_episode))
        elif not is_scalar(first_episode) or first_episode != 0:
            raise ValidationError("numbers= gives every episode its number, so no first_episode=")
        self._numbers = numbers
        m = len(self.env_ids)
        self._open = OpenEpisodes(
            numbers.take(self.env_ids),
            np.zeros(m, np.int64),
            np.zeros(m),
            np.zeros(m, bool),
        )

    def _first_episodes(self, first_episode: Any) -> int | Mapping[str, int]:
        if is_scalar(first_episode):
            return coerce_integer(first_episode, "first_episode")
        firsts = coerce_integers(first_episode, "first_episode")
        if firsts.shape != (len(self.env_ids),):
            raise InvalidShapeError(
                f"first_episode has shape {list(firsts.shape)}; "
                f"for {len(self.env_ids)} environments it is a number or [{len(self.env_ids)}]"
            )
        return dict(zip(self.env_ids, firsts.tolist(), strict=True))

    @property
    def open_episodes(self) -> Int64Array:
        """int64 [M], the number of each environment's open episode, begun or next to begin."""
        return self._open.episode.copy()

    @property
    def open_lengths(self) -> Int64Array:
        """int64 [M], transitions of it so far; 0 where it has not begun."""
        return self._open.count.copy()

    def reset(self, mask: Any = None) -> EndedEpisodes:
        """Tell that the caller reset environments: after `env.reset()`, before the next step.

        Args:
            mask: bool [M], gymnasium's ``options["reset_mask"]``; None = all.

        Returns the episodes that this cut off: those with a transition and no end. They were not
        finished: leave them out of returns and lengths. Resetting an ended one cuts nothing off.

        Raises:
            InvalidShapeError, InvalidTypeError: `mask` is no bool [M].
        """
        m = len(self.env_ids)
        chosen = np.ones(m, dtype=bool) if mask is None else np.asarray(mask)
        if chosen.shape != (m,):
            raise InvalidShapeError(f"mask has shape {list(chosen.shape)}; it must be [{m}]")
        if chosen.dtype != np.bool_:
            raise InvalidTypeError(f"mask is an array of {chosen.dtype}, not of bool")
        self._open, aborted = abort(
            self._open, chosen, lambda rows: self._numbers.take(self._ids(rows))
        )
        return self._columns(aborted, np.arange(m))

    def update(
        self,
        rewards: Any,
        terminations: Any,
        truncations: Any = None,
        *,
        layout: str | None = None,
        flags: str = "end",
        envs: Any = None,
        resets: Any = None,
    ) -> EpisodeBlock:
        """Follow the environments through a rollout.

        Args:
            rewards: numbers [M] (one step), or T steps as [M, T] or [T, M]. Any array library.
            terminations: bool of that shape (0 and 1 will do); where `flags` is "end": the episode
                ended with this step.
            truncations: the same; None = never. A step may be both.
            layout: "MT" or "TM"; needed where `rewards` is two-dimensional: [M, T] and [T, M] are
                not told apart by their shapes.
            flags: "end", as `env.step` returns them; "start" where buffers keep them one row later
                (Stable-Baselines3's `episode_starts`, CleanRL's `dones`): the step begins an
                episode, under NEXT_STEP it is the reset. Then the last end of a rollout is known
                with the first row of the next.
            envs: for rows of some of the environments, in any order: the index of each row's
                environment. Of the shape of `rewards`, [N] also for rows of several steps, or [B]
                for B whole rows; an environment's own rows are in time order.
            resets: bool of that shape: the caller reset the environment before this step. For
                rollouts with resets inside; between rollouts there is `reset`.

        Raises:
            ValidationError: shapes do not fit, or an element is not acceptable.
            UsageError: `numbers` has none left.
        """
        if flags not in _FLAGS:
            raise ValidationError(f"flags is {flags!r}; it is 'end' or 'start'")
        rollout = read_rollout(
            rewards,
            terminations,
            truncations,
            resets,
            envs_count=len(self.env_ids),
            envs=envs,
            layout=layout,
        )
        if not rollout.values.size:
            return self._empty(rollout)
        env = rollout.env
        self._open, outcome = self._followed(rollout, is_start=flags == "start")
        return EpisodeBlock(
            env_id=self._ids(env),
            reward=rollout.on_grid,
            layout=rollout.layout,
            ended=self._columns(outcome.ended, env),
            aborted=self._columns(outcome.aborted, env),
            _segments=outcome.segments,
            _numbers=outcome.numbers,
            _first_step=outcome.first_count + self.first_env_step,
            _packing=rollout.packing,
            _mask=outcome.mask,
        )

    def _followed(self, rollout: Rollout, *, is_start: bool) -> tuple[OpenEpisodes, Outcome]:
        env = rollout.env
        outcome = follow(
            self._open.of(env),
            rollout,
            self.autoreset,
            lambda rows: self._numbers.take(self._ids(env[rows])),
            is_start=is_start,
        )
        return self._open.replaced(env, outcome.open), outcome

    def _ids(self, envs: Int64Array) -> tuple[str, ...]:
        if len(envs) == len(self.env_ids) and bool((np.diff(envs) > 0).all()):
            return self.env_ids  # the same object: those behind recognise it by identity
        return tuple(map(self.env_ids.__getitem__, envs.tolist()))

    def _columns(self, closed: Closed, env: Int64Array) -> EndedEpisodes:
        envs = env[closed.row]
        return EndedEpisodes(envs, self._ids(envs), *closed[1:])

    def _empty(self, rollout: Rollout) -> EpisodeBlock:
        none, never = np.empty(0, np.int64), np.empty(0, bool)
        nobody = self._columns(Closed(none, none, np.empty(0), none, never, never, none), none)
        return EpisodeBlock(
            env_id=self._ids(rollout.env),
            reward=rollout.on_grid,
            layout=rollout.layout,
            ended=nobody,
            aborted=nobody,
            _segments=Segments(rollout.shape, none, none, none, none, never, never, never),
            _numbers=none,
            _first_step=none,
            _packing=rollout.packing,
            _mask=None,
        )
