"""What does `EpisodeTracker` cost a training step, and what does logging its block add?

Expected: 0.1-0.3 ms of CPU for 64 environments x 128 steps, 2-5 ms for 4,096 x 24.
`python -m benchmarks.micro.bench_tracker [--repeats 200]` prints a table and asserts nothing.
1 % of the steps end an episode. `track` is `update` alone, `and place` also paints the grids that
`log_rl_environment_step` takes. Least CPU time of the repeats: other load only ever adds.
"""

from __future__ import annotations

import argparse
import gc
import time

import numpy as np

from metrana_async import EpisodeTracker

SHAPES = ((64, 128), (8, 2048), (256, 1), (4096, 24))
EPISODE_END = 0.01


def least_ms(envs: int, steps: int, mode: str, *, repeats: int, is_placed: bool) -> float:
    """Least CPU time of one rollout, ms."""
    rng = np.random.default_rng(1)
    rewards = rng.random((steps, envs), dtype=np.float32)
    ends = [rng.random((steps, envs)) < EPISODE_END for _ in range(8)]
    never = np.zeros((steps, envs), dtype=bool)
    tracker = EpisodeTracker(envs, mode)
    gc.collect()
    least = float("inf")
    for turn in range(repeats):
        begin = time.process_time_ns()
        block = tracker.update(rewards, ends[turn % len(ends)], never, layout="TM")
        if is_placed:
            _ = block.arguments, block.ended.arguments
        least = min(least, (time.process_time_ns() - begin) / 1e6)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    print(f"{'M x T':>12} {'autoreset':>10} {'track ms':>9} {'and place':>9} {'ns/point':>9}")
    for envs, steps in SHAPES:
        for mode in ("next_step", "same_step"):
            track = least_ms(envs, steps, mode, repeats=repeats, is_placed=False)
            placed = least_ms(envs, steps, mode, repeats=repeats, is_placed=True)
            each = placed * 1e6 / (envs * steps)
            shape = f"{envs} x {steps}"
            print(f"{shape:>12} {mode:>10} {track:9.3f} {placed:9.3f} {each:9.1f}")


if __name__ == "__main__":
    main()
