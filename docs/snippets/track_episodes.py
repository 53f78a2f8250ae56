"""A vectorised CartPole, rollout by rollout: every step and every episode where it belongs."""

import gymnasium
import numpy as np

import metrana_sync_shim as metrana

M, T = 4, 64  # environments, steps in a rollout
env = gymnasium.make_vec("CartPole-v1", num_envs=M, vectorization_mode="sync")
env.action_space.seed(0)
tracker = metrana.EpisodeTracker(M, env.metadata["autoreset_mode"])  # env0 .. env3

with metrana.init(project_name="tracked") as run:
    env.reset(seed=0)
    for rl_step in range(5):
        rewards = np.zeros((T, M), np.float32)
        terminations, truncations = np.zeros((T, M), bool), np.zeros((T, M), bool)
        for t in range(T):
            step = env.step(env.action_space.sample())
            _, rewards[t], terminations[t], truncations[t], _ = step

        block = tracker.update(rewards, terminations, truncations, layout="TM")
        metrana.log_rl_environment_step("reward", rewards, rl_step, **block.arguments)
        ended = block.ended
        metrana.log_rl_episode("episode_return", ended.returns, rl_step, **ended.arguments)
        metrana.log_rl_episode("episode_length", ended.lengths, rl_step, **ended.arguments)

with metrana.QueryClient(project="tracked") as client:
    returns = client.episode_series(run.name, "episode_return", env_id="env0")
    steps = client.env_series(run.name, "reward", env_id="env0", episode=0)
    print("episodes of env0:", returns.episode, "returned", returns.value)
    print("the first has", len(steps), "steps")
    assert len(steps) == returns.value[0]  # CartPole pays 1 a step
