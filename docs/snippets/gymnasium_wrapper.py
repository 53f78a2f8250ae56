"""A linear policy learns CartPole; the wrapper is the only line that is about logging."""

import gymnasium
import numpy as np

import metrana_sync_shim as metrana
from metrana_async.integrations.gymnasium import LogRollouts

M, T = 8, 128
rng = np.random.default_rng(0)
weights = np.zeros(4)

with metrana.init(project_name="cartpole") as run:
    env = gymnasium.make_vec("CartPole-v1", num_envs=M, vectorization_mode="sync")
    env = LogRollouts(env, steps_per_update=T)
    observation, _ = env.reset(seed=0)
    for _ in range(25):
        inputs, surprise = np.zeros((T, M, 4)), np.zeros((T, M))
        rewards, over = np.zeros((T, M)), np.zeros((T, M), bool)
        for t in range(T):
            right = 1 / (1 + np.exp(-observation @ weights))
            action = (rng.random(M) < right).astype(int)
            inputs[t], surprise[t] = observation, action - right
            observation, rewards[t], terminated, truncated, _ = env.step(action)
            over[t] = terminated | truncated
        returns, ahead = np.zeros((T, M)), np.zeros(M)
        for t in reversed(range(T)):
            ahead = returns[t] = rewards[t] + 0.98 * ahead * ~over[t]
        advantage = (returns - returns.mean()) / returns.std()
        weights += 2 * np.einsum("tmi,tm,tm->i", inputs, surprise, advantage) / (T * M)
    env.close()

with metrana.QueryClient(project="cartpole") as client:
    found = client.episode_series_all(run.name, "episode_return")
    early, late = found.value[found.rl_step < 3].mean(), found.value[found.rl_step >= 22].mean()
    print(f"{len(found)} episodes; mean return {early:.0f} at first, {late:.0f} at last")
    assert late > early
