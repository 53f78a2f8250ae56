"""Many points from many places: each exactly once, both ledgers balanced, memory bounded."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.runner import ServerProcess

from .conftest import Place


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_processes_log_a_hundred_thousand_distributed_points_each(place):
    """800,000 merge points from 8 processes: count 8 a step, min and max right, ledgers balance."""
    code = """
        rank = int(os.environ["RANK_NUMBER"])
        run = metrana.init(run_name="run", orchestration_id="job")
        for step in range(100_000):
            run.log_distributed("loss", float(rank * 1000 + step % 1000), step=step)
        info = run.close()
        assert info.statistics.is_balanced, info
        assert info.statistics.committed == 100_000, info
    """
    outcomes: dict[int, subprocess.CompletedProcess] = {}

    def rank_main(rank: int) -> None:
        outcomes[rank] = place.script(code, timeout_s=280, RANK_NUMBER=str(rank))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert [(o.returncode, o.stderr) for _, o in sorted(outcomes.items())] == [(0, "")] * 8
    with place.reader() as reader:
        loss = reader.merged("run", "loss")
        ledger = reader.ledger("run")
        assert (ledger.difference, ledger.committed) == (0, 800_000)
    assert np.array_equal(loss.step, np.arange(100_000))
    assert (loss.count == 8).all()
    assert np.array_equal(loss.min, np.arange(100_000) % 1000)
    assert np.array_equal(loss.max, 7000 + np.arange(100_000) % 1000)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_threads_log_a_hundred_thousand_ordered_points_each(place):
    """800,000 ordered points from 8 threads: every series complete and in order."""
    run = place.init()

    def write(name: str) -> None:
        for i in range(100_000):
            run.log(name, float(i))

    threads = [threading.Thread(target=write, args=(f"series{k}",)) for k in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    info = run.close()
    assert info.statistics.is_balanced, info
    assert info.statistics.committed == 800_000
    with place.reader() as reader:
        for k in range(8):
            series = reader.series("run", f"series{k}")
            assert np.array_equal(series.step, np.arange(100_000))
            assert np.array_equal(series.value, np.arange(100_000, dtype=np.float32))
        assert reader.ledger("run").difference == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_thousand_environments_with_episodes_ending_at_random(tmp_path_factory):
    """4,096 envs x 24 steps x 10 metrics x 20 rollouts: every point once; server memory bounded."""
    server = ServerProcess(tmp_path_factory.mktemp("volume") / "data")
    place = Place("volume", str(server.data_dir))
    m, t, metrics, rollouts = 4096, 24, 10, 20
    seed = 20
    print(f"seed {seed}", file=sys.stderr)
    rng = np.random.default_rng(seed)
    env_ids = [f"env{i}" for i in range(m)]
    episode = np.zeros(m, dtype=np.int64)
    logged = [[] for _ in range(metrics)]
    episodes_logged = []
    peak_mib = 0.0
    try:
        run = place.init()
        for rl_step in range(rollouts):
            ends = rng.random((m, t)) < 0.03
            episodes = episode[:, None] + np.cumsum(ends, axis=1) - ends
            episodes_logged.append(episodes)
            for k in range(metrics):
                values = rng.standard_normal((m, t), dtype=np.float32)
                run.log_rl_environment_step(
                    f"metric{k}", values, rl_step, env_ids, episode=episodes
                )
                logged[k].append(values)
            episode += ends.sum(axis=1)
            peak_mib = max(peak_mib, rss_mib(server.pid))
        info = run.close()
        peak_mib = max(peak_mib, rss_mib(server.pid))
        total = m * t * metrics * rollouts
        assert info.statistics.is_balanced, info
        assert info.statistics.committed == total
        wanted_episodes = np.concatenate(episodes_logged, axis=1)
        steps_within = np.zeros_like(wanted_episodes)
        for column in range(1, wanted_episodes.shape[1]):
            same = wanted_episodes[:, column] == wanted_episodes[:, column - 1]
            steps_within[:, column] = np.where(same, steps_within[:, column - 1] + 1, 0)
        with place.reader() as reader:
            for k in range(metrics):
                found = reader.env_series_all("run", f"metric{k}")
                number = np.array([int(env_id[3:]) for env_id in found.env_ids])
                order = np.lexsort((found.env_step, found.episode, number[found.env]))
                assert np.array_equal(found.value[order], np.concatenate(logged[k], axis=1).ravel())
                assert np.array_equal(found.episode[order], wanted_episodes.ravel())
                assert np.array_equal(found.env_step[order], steps_within.ravel())
            ledger = reader.ledger("run")
            assert (ledger.difference, ledger.visible) == (0, total)
        assert peak_mib < 600, f"the server grew to {peak_mib:.0f} MiB"
    finally:
        server.stop()
