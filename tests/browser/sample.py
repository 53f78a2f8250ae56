"""A project that looks like a day's work: a sweep of five runs, environments, episodes, a spike."""

from __future__ import annotations

import numpy as np

import metrana_sync_shim as metrana

PROJECT = "ant-sweep"
POINTS, STRIDE = 3000, 20_000
ENVS, ROLLOUT, RL_STEPS = 24, 16, 60
WORST_ENV = "env-005"
SPIKE = 12.5
RUNS = (
    ("ppo-ant-lr1e-4-s0", 1e-4, 0, 1.0),
    ("ppo-ant-lr3e-4-s1", 3e-4, 1, 1.0),
    ("ppo-ant-lr1e-3-s2", 1e-3, 2, 1.0),
    ("ppo-ant-lr1e-4-s3", 1e-4, 3, 0.25),
    ("ppo-ant-lr3e-4-s4", 3e-4, 4, 0.62),
)


def log_sample(data_dir: str) -> metrana.Run:
    """Log the sweep; the last run goes on: it is returned open, and has an rl_step to come."""
    for name, rate, seed, share in RUNS[:-1]:
        run = begin(data_dir, name, rate, seed)
        log_curves(run, rate, seed, share)
        if seed == 1:
            log_environments(run, seed)
        if share < 1:
            try:
                with run:
                    raise FloatingPointError("the loss is NaN")
            except FloatingPointError:
                pass
        else:
            run.close()
    name, rate, seed, share = RUNS[-1]
    run = begin(data_dir, name, rate, seed)
    log_curves(run, rate, seed, share)
    log_environments(run, seed)
    run.flush()
    return run


def begin(data_dir: str, name: str, rate: float, seed: int) -> metrana.Run:
    return metrana.init(
        project_name=PROJECT,
        run_name=name,
        data_dir=data_dir,
        quiet=True,
        tags=["sweep", "ant"] if seed else ["sweep", "ant", "baseline"],
        config={
            "algo": "ppo",
            "seed": seed,
            "optimizer": {"lr": rate, "name": "adam", "eps": 1e-5},
            "env": {"id": "Ant-v5", "count": ENVS},
            "clip": 0.2 if rate < 1e-3 else 0.1,
            "hidden": [256, 256],
        },
    )


def log_curves(run: metrana.Run, rate: float, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    count = int(POINTS * share)
    step = np.arange(count) * STRIDE
    x = np.arange(count) / POINTS
    rise = 1 / (1 + np.exp(-(x - 0.35 + 0.04 * seed) * 14))
    noise = rng.normal(size=(9, count))
    grad = 0.5 + 0.08 * np.abs(noise[3])
    grad[rng.integers(0, count, 6)] = rng.uniform(5, SPIKE, 6)
    curves = {
        "rollout/ep_return_mean": 5200 * rise + 240 * noise[0],
        "rollout/ep_len_mean": 1000 * rise**0.5 + 20 * noise[1],
        "rollout/success_rate": np.clip(rise + 0.05 * noise[2], 0, 1.1),
        "train/loss": np.exp(-3 * x) * (1 + 60 * rate) + 0.03 * noise[4],
        "train/value_loss": np.exp(-2 * x) + 0.04 * noise[5],
        "train/entropy": 1.4 * np.exp(-1.4 * x) + 0.03 * noise[6],
        "train/approx_kl": 0.01 + 0.004 * np.sin(9 * x + seed) + 0.004 * noise[7],
        "train/grad_norm": grad,
        "perf/env_steps_per_sec": 200_000 + 9_000 * noise[8] - 3_000 * seed,
    }
    if share < 0.5:
        curves["train/loss"][-40:] = np.nan
    for name, value in curves.items():
        run.log(name, value, step=step)


def log_environments(run: metrana.Run, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    env_ids = [f"env-{n:03d}" for n in range(ENVS)]
    for n, env_id in enumerate(env_ids):
        run.log_env_attributes(
            env_id, {"terrain": ("flat", "hills", "stairs")[n % 3], "seed": 1000 + n}
        )
    for rl_step in range(RL_STEPS):
        log_rollout(run, rng, rl_step, env_ids)


def log_rollout(run: metrana.Run, rng: np.random.Generator, rl_step: int, env_ids) -> None:
    level = 1 / (1 + np.exp(-(rl_step / RL_STEPS - 0.35) * 12))
    skill = np.array(
        [0.25 if name == WORST_ENV else 1 - 0.004 * n for n, name in enumerate(env_ids)]
    )
    t = np.arange(ROLLOUT)
    reward = level * skill[:, None] * (1 + 0.3 * np.sin(t / 3)) + 0.1 * rng.normal(
        size=(len(env_ids), ROLLOUT)
    )
    run.log_rl_environment_step(
        "reward", reward, rl_step=rl_step, env_id=env_ids, episode=np.full(len(env_ids), rl_step)
    )
    for name, value in (
        ("episode_return", 320 * reward.sum(axis=1)),
        ("episode_length", 200 + 800 * level * skill + 20 * rng.normal(size=len(env_ids))),
    ):
        run.log_rl_episode(name, value, rl_step=rl_step, env_id=env_ids, episode=rl_step)
