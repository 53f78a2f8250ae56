"""The specification's typical RL loop; only its import line is ours."""

import numpy as np

import metrana_sync_shim as metrana

num_envs, num_updates, horizon = 3, 5, 4
rng = np.random.default_rng(0)


class Rollouts:
    def __init__(self, update):
        self.rewards = rng.random((num_envs, horizon), dtype=np.float32)
        self.episodes = np.full((num_envs, horizon), update)
        self.last_episode = self.episodes[:, -1]


def collect_rollouts():
    return Rollouts(rl_step)


def finished_episode_returns(rollouts):
    return list(enumerate(rollouts.rewards.sum(axis=1)))


metrana.init(workspace_name="ws", project_name="proj", run_name="rl-001")
env_ids = [f"env{i}" for i in range(num_envs)]

try:
    for rl_step in range(num_updates):
        rollouts = collect_rollouts()  # rewards: [num_envs, T], episodes: [num_envs, T]

        metrana.log_rl_environment_step(
            "reward",
            rollouts.rewards,
            rl_step=rl_step,
            env_id=env_ids,
            episode=rollouts.episodes,
        )
        for env_i, ep_return in finished_episode_returns(rollouts):
            metrana.log_rl_episode(
                "episode_return",
                ep_return,
                rl_step=rl_step,
                env_id=env_ids[env_i],
                episode=rollouts.last_episode[env_i],
            )
finally:
    metrana.close()
