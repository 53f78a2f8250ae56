"""A driver and its actors log to one run; two actors play episodes of one environment."""

import asyncio
import os
import sys

import numpy as np
import ray

import metrana_async
import metrana_sync_shim as metrana

PROJECT, RUN = "rollouts", os.environ.get("RUN_NAME", "ray")


@ray.remote
class Player:
    """Gets the run's handle; its copy joins the run in the actor's process."""

    def __init__(self, run: metrana.Run) -> None:
        self.run = run

    def play(self, episode: int) -> int:
        rewards = np.random.default_rng(episode).random(20)
        self.run.log_rl_environment_step("reward", rewards, episode, "env0", episode=episode)
        self.run.log_rl_episode("return", rewards.sum(), episode, episode=episode, env_id="env0")
        return os.getpid()

    def close(self) -> None:
        self.run.close()


@ray.remote
class AsyncCritic:
    """Joins by the names: every process of a Ray job agrees on the orchestration id."""

    async def evaluate(self, count: int) -> None:
        async with await metrana_async.init(project_name=PROJECT, run_name=RUN, quiet=True) as run:
            for step in range(count):
                await run.log_distributed("value_loss", float(step), step=step)
                await asyncio.sleep(0)


@ray.remote(max_concurrency=4)
class ThreadedLearner:
    """Four calls at once share the process's writer."""

    def __init__(self) -> None:
        self.run = metrana.init(project_name=PROJECT, run_name=RUN, quiet=True)

    def learn(self, thread: int, count: int) -> None:
        for step in range(count):
            self.run.log_distributed("policy_loss", float(thread), step=step)

    def close(self) -> None:
        self.run.close()


@ray.remote
def task(step: int) -> None:
    """A task of a worker that Ray started before there was a run."""
    with metrana.init(project_name=PROJECT, run_name=RUN, quiet=True) as run:
        run.log_distributed("task", float(step), step=step)


def main() -> None:
    ray.init("local", num_cpus=4, include_dashboard=False)
    run = metrana.init(project_name=PROJECT, run_name=RUN, config={"created_by_pid": os.getpid()})

    players = [Player.remote(run) for _ in range(2)]
    critic, learner = AsyncCritic.remote(), ThreadedLearner.remote()
    episodes = [players[k % 2].play.remote(k) for k in range(20)]
    others = [critic.evaluate.remote(50), *(learner.learn.remote(t, 50) for t in range(4))]
    others += [task.remote(step) for step in range(4)]
    print("episodes were played by", len(set(ray.get(episodes))), "processes")
    ray.get(others)
    ray.get([actor.close.remote() for actor in (*players, learner)])

    run.log("done", 1.0)
    run.close()
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
