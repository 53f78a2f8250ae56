"""A linear softmax policy learns CartPole by REINFORCE, in numpy, on a gymnasium vector env.

Nothing here knows about logging: `train` yields what each update collected. That is the shape of
most RL code, so the two demos that log it differ only in how they log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np

GAMMA = 0.98
LEARNING_RATE = 0.03


@dataclass
class Update:
    """One training update: a rollout of T steps in M environments, time-major, and its results.

    `mask` is False where the environment only reset itself (gymnasium's next-step autoreset):
    those rows are no transitions. `ended` lists the episodes that ended in this rollout.
    """

    rl_step: int
    rewards: np.ndarray  # float32 [T, M]
    episodes: np.ndarray  # int64 [T, M]
    mask: np.ndarray  # bool [T, M]
    ended_env: np.ndarray  # int64 [N]
    ended_episode: np.ndarray  # int64 [N]
    ended_return: np.ndarray  # float32 [N]
    loss: float
    entropy: float


def train(*, seconds: float, seed: int, envs: int = 16, horizon: int = 64) -> Iterator[Update]:
    """Train for about `seconds`; yields one Update after each policy update."""
    rng = np.random.default_rng(seed)
    env = gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="sync")
    observation, _ = env.reset(seed=seed)
    weights = np.zeros((observation.shape[1] + 1, 2))
    episode = np.zeros(envs, dtype=np.int64)
    episode_return = np.zeros(envs, dtype=np.float32)
    is_reset_row = np.zeros(envs, dtype=bool)
    stop = time.monotonic() + seconds
    rl_step = 0
    while time.monotonic() < stop:
        shape = (horizon, envs)
        rewards, mask = np.zeros(shape, np.float32), np.zeros(shape, bool)
        episodes, dones = np.zeros(shape, np.int64), np.zeros(shape, bool)
        inputs, actions = np.zeros((*shape, weights.shape[0])), np.zeros(shape, np.int64)
        ended: list[tuple[int, int, float]] = []
        for t in range(horizon):
            inputs[t] = np.hstack([observation, np.ones((envs, 1))])
            probability = _softmax(inputs[t] @ weights)
            actions[t] = rng.random(envs) < probability[:, 1]
            observation, reward, terminated, truncated, _ = env.step(actions[t])
            rewards[t], episodes[t], mask[t] = reward, episode, ~is_reset_row
            done = terminated | truncated
            dones[t] = done
            episode_return += np.where(is_reset_row, 0, reward).astype(np.float32)
            ended += [
                (int(e), int(episode[e]), float(episode_return[e])) for e in np.flatnonzero(done)
            ]
            episode += done
            episode_return[done] = 0
            is_reset_row = done
        loss, entropy = _improve(weights, inputs, actions, rewards, dones, mask)
        columns = list(zip(*ended, strict=True)) or [(), (), ()]
        yield Update(
            rl_step,
            rewards,
            episodes,
            mask,
            np.array(columns[0], np.int64),
            np.array(columns[1], np.int64),
            np.array(columns[2], np.float32),
            loss,
            entropy,
        )
        rl_step += 1
    env.close()


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _improve(  # noqa: PLR0917 - the six arrays of one rollout
    weights, inputs, actions, rewards, dones, mask
) -> tuple[float, float]:
    """One REINFORCE step on `weights`, in place; returns loss and mean policy entropy."""
    returns = np.zeros_like(rewards, dtype=np.float64)
    running = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        running = rewards[t] + GAMMA * running * ~dones[t]
        returns[t] = running
    advantage = np.where(mask, returns - returns[mask].mean(), 0) / (returns[mask].std() + 1e-8)
    probability = _softmax(inputs @ weights)
    chosen = np.take_along_axis(probability, actions[..., None], axis=-1)[..., 0]
    wanted = np.eye(2)[actions] - probability
    gradient = np.einsum("tmi,tma,tm->ia", inputs, wanted, advantage) / mask.sum()
    weights += LEARNING_RATE * 10 * gradient
    loss = float(-(np.log(chosen) * advantage)[mask].mean())
    entropy = float(-(probability * np.log(probability)).sum(axis=-1)[mask].mean())
    return loss, entropy
