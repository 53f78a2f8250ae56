"""Train a small policy, log it through both surfaces, read everything back and compare.

`make demo` runs this. It finds (or starts) this machine's server, trains about half a minute in
all, and ends with a table of what was logged and what came back. Exit status 1 if they differ.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

import numpy as np

import metrana_async
import metrana_sync_shim
from docs.examples.cartpole import Update, train

PROJECT = "demo"
ENVS = 16
ENV_IDS = [f"env{i}" for i in range(ENVS)]


@dataclass
class Record:
    """The demo's own memory of what it logged, to hold against what is read back."""

    loss: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    # By env_id and episode: (rl_step, value) of every env step, and of the episode's return.
    rewards: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)
    returns: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)

    def add(self, update: Update) -> None:
        """Remember one update as a reader should see it."""
        self.loss.append(float(np.float32(update.loss)))
        self.entropy.append(float(np.float32(update.entropy)))
        for m, env_id in enumerate(ENV_IDS):
            kept = update.mask[:, m]
            rows = zip(update.episodes[kept, m], update.rewards[kept, m], strict=True)
            for episode, reward in rows:
                row = (update.rl_step, float(reward))
                self.rewards.setdefault((env_id, int(episode)), []).append(row)
        ended = zip(update.ended_env, update.ended_episode, update.ended_return, strict=True)
        self.returns.update({(ENV_IDS[e], int(k)): (update.rl_step, float(r)) for e, k, r in ended})


async def log_async(seconds: float, seed: int) -> tuple[str, Record]:
    """The async surface: every call is awaited."""
    record = Record()
    async with metrana_async.init(project_name=PROJECT, config={"seed": seed, "envs": ENVS}) as run:
        for update in train(seconds=seconds, seed=seed, envs=ENVS):
            await run.log({"train/loss": update.loss, "train/entropy": update.entropy})
            await run.log_rl_environment_step(
                "reward",
                update.rewards,
                update.rl_step,
                ENV_IDS,
                episode=update.episodes,
                mask=update.mask,
                layout="TM",
            )
            await run.log_rl_episode(
                "episode_return",
                update.ended_return,
                update.rl_step,
                update.ended_episode,
                [ENV_IDS[e] for e in update.ended_env],
            )
            record.add(update)
    return run.name, record


def log_sync(seconds: float, seed: int) -> tuple[str, Record]:
    """The blocking surface: the same names, no await."""
    metrana = metrana_sync_shim
    record = Record()
    with metrana.init(project_name=PROJECT, config={"seed": seed, "envs": ENVS}) as run:
        for update in train(seconds=seconds, seed=seed, envs=ENVS):
            metrana.log({"train/loss": update.loss, "train/entropy": update.entropy})
            metrana.log_rl_environment_step(
                "reward",
                update.rewards,
                update.rl_step,
                ENV_IDS,
                episode=update.episodes,
                mask=update.mask,
                layout="TM",
            )
            metrana.log_rl_episode(
                "episode_return",
                update.ended_return,
                update.rl_step,
                update.ended_episode,
                [ENV_IDS[e] for e in update.ended_env],
            )
            record.add(update)
    return run.name, record


def differences(client: metrana_sync_shim.QueryClient, run: str, record: Record) -> list[str]:
    """Read the run back whole; says what differs from the record (nothing, we hope)."""
    found = []
    for metric, logged_values in (("train/loss", record.loss), ("train/entropy", record.entropy)):
        read = client.series(run, metric)
        steps = list(range(len(logged_values)))
        if read.value.tolist() != logged_values or read.step.tolist() != steps:
            found.append(f"{metric} differs")
    for env_id in ENV_IDS:
        reward = client.env_series(run, "reward", env_id=env_id)
        read_episodes = np.unique(reward.episode).tolist()
        for episode in read_episodes:
            rows = reward.episode == episode
            read_rows = _pairs(reward.rl_step[rows], reward.value[rows])
            counted = reward.env_step[rows].tolist() == list(range(int(rows.sum())))
            if read_rows != record.rewards.get((env_id, episode)) or not counted:
                found.append(f"reward of {env_id}, episode {episode} differs")
        logged_episodes = sum(1 for env, _ in record.rewards if env == env_id)
        if len(read_episodes) != logged_episodes:
            found.append(
                f"reward of {env_id} has {len(read_episodes)} episodes, {logged_episodes} logged"
            )
        returns = client.episode_series(run, "episode_return", env_id=env_id)
        read_returns = dict(
            zip(returns.episode.tolist(), _pairs(returns.rl_step, returns.value), strict=True)
        )
        if read_returns != {k: row for (env, k), row in record.returns.items() if env == env_id}:
            found.append(f"episode_return of {env_id} differs")
    return found


def _pairs(rl_step: np.ndarray, value: np.ndarray) -> list[tuple[int, float]]:
    return list(zip(rl_step.tolist(), value.tolist(), strict=True))


def main() -> int:
    """Train, log, read back, compare, print; returns the exit status."""
    sys.stdout.write("training CartPole with 16 environments, twice about 12 seconds …\n")
    runs = [
        ("metrana_async", *asyncio.run(log_async(12, seed=1))),
        ("metrana_sync_shim", *log_sync(12, seed=2)),
    ]
    problems = []
    with metrana_sync_shim.QueryClient(project=PROJECT) as client:
        sys.stdout.write(
            f"\n{'logged through':18} {'run':22} {'points':>8} {'episodes':>8} "
            f"{'first returns':>13} {'last returns':>12}  read back\n"
        )
        for surface, name, record in runs:
            wrong = differences(client, name, record)
            problems += wrong
            points = (
                sum(map(len, record.rewards.values())) + 2 * len(record.loss) + len(record.returns)
            )
            returns = [value for _, value in record.returns.values()]
            sys.stdout.write(
                f"{surface:18} {name:22} {points:8,} {len(record.returns):8,} "
                f"{np.mean(returns[:50]):13.1f} {np.mean(returns[-50:]):12.1f}  "
                f"{'every point equal' if not wrong else f'{len(wrong)} differences'}\n"
            )
    for problem in problems[:20]:
        sys.stdout.write(f"  {problem}\n")
    look = f"QueryClient(project='{PROJECT}').series('{runs[-1][1]}', 'train/loss').value[-5:]"
    sys.stdout.write(
        "\nthe last five losses, from any directory:\n"
        f'  {sys.executable} -c "from metrana_sync_shim import QueryClient; print({look})"\n'
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
