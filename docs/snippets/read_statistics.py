"""Curves, groups of runs, and environments: statistics that use every point."""

import numpy as np

import metrana_sync_shim as metrana
from metrana_sync_shim import RLStep

rng = np.random.default_rng(0)
envs = [f"env-{i}" for i in range(64)]
for seed in range(4):
    lr = 1e-3 if seed % 2 else 3e-4
    with metrana.init(project_name="stats", run_name=f"seed-{seed}", config={"lr": lr}) as run:
        loss = np.exp(-np.arange(10_000 + 1_000 * seed) / 3_000) + rng.normal(0, 0.01)
        loss[7_654] = 9.0  # one spike
        run.log("loss", loss, step=0)
        for i, env in enumerate(envs):
            run.log_env_attributes(env, {"terrain": "rough" if i % 2 else "flat"})
        for update in range(20):
            rewards = rng.normal(update, 1.0, size=(64, 32))
            run.log_rl_environment_step("reward", rewards, rl_step=update, env_id=envs)

with metrana.QueryClient(project="stats") as client:
    # Curves of all runs on one grid; the spike is in it, whatever the width of the picture.
    curves = client.buckets(client.runs(), "loss", n=200, fn=("mean", "min", "max"))
    print(len(curves), "rows;", curves.width, "steps a bucket; highest:", curves["max"].max())

    # Mean and deviation over the seeds of each learning rate.
    groups = client.group_runs(client.runs(), "loss", by="config.lr", n=200)
    for at, group in enumerate(groups.groups):
        rows = groups.of(at)
        print(dict(group.by), "n =", rows["count"][0], "then", rows["count"][-1])

    # Each environment first, then across the 64: mean, deviation and the worst tenth.
    across = client.aggregate_environments(
        "seed-0", "reward", fn=("mean", "std", "quantile:0.1"), by="terrain"
    )
    print(across.of(0)["x"][-1], across.of(0)["mean"][-1].round(2), across.of(0)["count"][-1])

    # The five worst environments at one update.
    worst = client.environment_table("seed-0", "reward", at=RLStep(10), order_by="reward", limit=5)
    print(worst.env_ids, "of", worst.total_count, worst["reward.mean"].round(2))
