"""`LogRollouts`: a wrapper of gymnasium vector environments that logs what happens in them.

It only listens: observations, rewards, flags and infos pass through as they are. What it saw is
kept as copies for a few steps and logged as blocks, each under the update it was collected in.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv, VectorWrapper

from metrana_async.columns.integers import coerce_integer
from metrana_async.current import current_run
from metrana_async.errors import MetranaWarning, ValidationError
from metrana_async.handle import ASK_TIMEOUT_S, Handle
from metrana_async.rl import EndedEpisodes, EpisodeTracker
from metrana_async.rl.numbers import EpisodeNumbers

_MODE_KEY: Final = "autoreset_mode"
_REWARD_WRAPPERS: Final = (
    "NormalizeReward",
    "TransformReward",
    "ClipReward",
    "VectorRewardWrapper",
)


class LogRollouts(VectorWrapper):
    """Logs rewards, returns and lengths of every environment and episode to a run.

    ::

        env = LogRollouts(gymnasium.make_vec("CartPole-v1", num_envs=8), steps_per_update=128)

    Logged are ``reward`` for each step and, for each episode that ended, ``episode_return`` and
    ``episode_length``; under NEXT_STEP autoreset without the rows that are no transitions. Episodes
    that a reset of yours cuts off keep their steps and get no return.

    Rows wait here for at most `buffer_steps` steps: `close` the environment before the run.

    Args:
        env: a vector environment; wrappers that change rewards belong around this one.
        run: what `init` gave, of either surface; None = the process's current run.
        env_ids: an id for each environment; None = ``env0``… Workers of one run need ids of their
            own, or `numbers`.
        steps_per_update: steps of a rollout: `rl_step` goes up by one behind each. None = it is
            yours to set.
        autoreset: see `EpisodeTracker`; None = as the environment's metadata say.
        first_episode: see `EpisodeTracker`; None = behind the last one of each id in the run.
        numbers: see `EpisodeTracker`.
        prefix: put before the three metric names.
        evaluation: True logs with the label ``evaluation=true``.
        labels: see `Run.log`.
        buffer_steps: steps that are logged as one block, at the most.

    Raises:
        ValidationError: an argument is not acceptable, or nothing says how the environment resets.
        NotInitializedError: `run` is None and there is no current run.

    As little thread-safe as the environment.
    """

    _is_listening = False

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        run: Any = None,
        *,
        env_ids: Sequence[str] | None = None,
        steps_per_update: int | None = None,
        autoreset: Any = None,
        first_episode: Any = None,
        numbers: EpisodeNumbers | None = None,
        prefix: str = "",
        evaluation: bool = False,
        labels: Mapping[str, str] | None = None,
        buffer_steps: int = 64,
    ) -> None:
        super().__init__(env)
        self._run = current_run() if run is None else run
        self._steps_per_update = _positive(steps_per_update, "steps_per_update")
        self._buffer_steps = _positive(buffer_steps, "buffer_steps") or 1
        self._prefix = prefix
        self._labelled: dict[str, Any] = {"evaluation": evaluation, "labels": labels}
        ids = [f"env{i}" for i in range(env.num_envs)] if env_ids is None else env_ids
        if len(ids) != env.num_envs:
            raise ValidationError(f"env_ids has {len(ids)} ids for {env.num_envs} environments")
        last = [self._last(env_id) for env_id in ids]
        if numbers is not None:
            first_episode = 0
        elif first_episode is None:
            first_episode = [0 if episode is None else episode + 1 for _, episode in last]
        self.tracker = EpisodeTracker(
            ids, _mode(env, autoreset), first_episode=first_episode, numbers=numbers
        )
        self._rl_step = max((-1 if rl_step is None else rl_step for rl_step, _ in last)) + 1
        self._steps_left = self._steps_per_update
        self._rows: list[tuple[npt.NDArray[Any], ...]] = []
        self._resets = np.zeros(env.num_envs, dtype=bool)
        self._warn_of_changed_rewards()
        self._is_listening = True

    def _last(self, env_id: str) -> tuple[int | None, int | None]:
        """Highest rl_step and episode of an environment in the run."""
        if isinstance(self._run, Handle):
            return self._run.begin_last_rl_step(env_id).result(ASK_TIMEOUT_S)
        found: tuple[int | None, int | None] = self._run.get_env_last_rl_step_and_episode(env_id)
        return found

    def _warn_of_changed_rewards(self) -> None:
        around: Any = self.env
        names = []
        while isinstance(around, VectorWrapper):
            names += [c.__name__ for c in type(around).__mro__]
            around = around.env
        for one in getattr(around, "envs", ())[:1]:
            inner = one
            while isinstance(inner, gymnasium.Wrapper):
                names += [c.__name__ for c in type(inner).__mro__]
                inner = inner.env
        changed = next((name for name in names if name in _REWARD_WRAPPERS), None)
        if changed is not None:
            warnings.warn(
                f"LogRollouts is around {changed}: it logs rewards and returns as that changes "
                "them; put it around LogRollouts to log the environment's own",
                MetranaWarning,
                stacklevel=3,
            )

    @property
    def rl_step(self) -> int:
        """The training update that steps are logged under; begins behind the run's last.

        Setting it logs what waits under the value before.
        """
        return self._rl_step

    @rl_step.setter
    def rl_step(self, value: int) -> None:
        rl_step = coerce_integer(value, "rl_step")
        if rl_step != self._rl_step:
            self.log_waiting()
        self._rl_step = rl_step

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; take note."""
        # Read first: the environment takes the mask out of the caller's dictionary.
        mask = None if options is None else options.get("reset_mask")
        chosen = np.ones(self.num_envs, bool) if mask is None else np.array(mask, dtype=bool)
        answer = self.env.reset(seed=seed, options=options)
        self._resets |= chosen
        return answer

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and take note."""
        answer = self.env.step(actions)
        _, rewards, terminations, truncations, _ = answer
        # Copies: a library may use its arrays again.
        self._rows.append(
            (np.array(rewards), np.array(terminations), np.array(truncations), self._resets)
        )
        self._resets = np.zeros(self.num_envs, dtype=bool)
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._steps_left = self._steps_per_update
                self.rl_step += 1
        if len(self._rows) >= self._buffer_steps:
            self.log_waiting()
        return answer

    def log_waiting(self) -> None:
        """Log the steps that wait here, under the present `rl_step`.

        Raises:
            QueueFullError, RunClosedError: the run does not take them; they are dropped here, and
                episodes go on behind them.
        """
        if not self._rows:
            return
        rewards, terminations, truncations, resets = map(np.stack, zip(*self._rows, strict=True))
        self._rows = []
        block = self.tracker.update(rewards, terminations, truncations, resets=resets, layout="TM")
        self._wait(
            self._run.log_rl_environment_step(
                self._prefix + "reward",
                block.reward,
                self._rl_step,
                **block.arguments,
                **self._labelled,
            )
        )
        self._log_ended(block.ended)

    def _log_ended(self, ended: EndedEpisodes) -> None:
        for name, value in (("episode_return", ended.returns), ("episode_length", ended.lengths)):
            if len(ended):
                self._wait(
                    self._run.log_rl_episode(
                        self._prefix + name,
                        value,
                        self._rl_step,
                        **ended.arguments,
                        **self._labelled,
                    )
                )

    @staticmethod
    def _wait(pending: Any) -> None:
        """Wait for room; a call of the blocking surface has waited already."""
        if pending is not None:
            pending.block()

    def close(self, **kwargs: Any) -> None:
        """Log what waits, then close the environment."""
        if not self._is_listening:
            # gymnasium's finalizer, for a wrapper whose arguments were refused.
            return
        try:
            self.log_waiting()
        finally:
            super().close(**kwargs)


def _mode(env: Any, autoreset: Any) -> Any:
    mode = (env.metadata or {}).get(_MODE_KEY) if autoreset is None else autoreset
    if mode is None:
        raise ValidationError(
            f"the environment's metadata have no {_MODE_KEY!r}",
            hint="say it: autoreset='next_step', 'same_step' or 'disabled'",
        )
    return mode


def _positive(given: int | None, what: str) -> int | None:
    if given is None:
        return None
    number = coerce_integer(given, what)
    if not number:
        raise ValidationError(f"{what} is 0; it is at least 1")
    return number
