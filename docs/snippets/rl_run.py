import numpy as np

import metrana_sync_shim as metrana

M, T = 4, 8  # environments, env steps in a rollout
env_ids = [f"env{i}" for i in range(M)]
rng = np.random.default_rng(0)
episode = np.zeros(M, dtype=np.int64)

with metrana.init(project_name="grid-world", config={"envs": M}) as run:
    for rl_step in range(20):
        rewards = rng.random((M, T), dtype=np.float32)
        ends = rng.random((M, T)) < 0.2
        # The episode of every point: it goes up after a step that ended one.
        episodes = episode[:, None] + np.cumsum(ends, axis=1) - ends
        metrana.log_rl_environment_step(
            "reward", rewards, rl_step=rl_step, env_id=env_ids, episode=episodes
        )
        env, t = np.nonzero(ends)
        metrana.log_rl_episode(
            "episode_length",
            rng.integers(1, 50, len(env)),
            rl_step=rl_step,
            env_id=[env_ids[e] for e in env],
            episode=episodes[env, t],
        )
        episode += ends.sum(axis=1)

with metrana.QueryClient(project="grid-world") as client:
    first = client.env_series(run.name, "reward", env_id="env0", episode=0)
    print("episode 0 of env0:", first.env_step, first.value)
    print("mean length:", client.aggregate(run.name, "episode_length", "mean", env_id="env0"))
