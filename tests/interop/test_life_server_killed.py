"""The server is killed while a client logs, and comes back on the same directory.

Every seed is printed; a failing one belongs into SEEDS.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import metrana_sync_shim as metrana
from tests.interop.conftest import JOB_VARIABLES, ROOT
from tests.interop.life import Home, home_in

pytestmark = pytest.mark.e2e

SEEDS = [1, 2]
ENVS = ["e0", "e1", "e2", "e3"]
STEPS, CALLS_PER_EPISODE = 3, 10


class KilledServer:
    """A server that a thread kills and starts again, at times drawn from a seed."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.kills = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "metrana_async.server", "--data-dir", self.home.data_dir]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert " on http" in self.process.stderr.readline()

    def kill(self, warning_s: float | None = None) -> None:
        """SIGKILL, some seconds after a SIGTERM where a warning is given."""
        if warning_s is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(warning_s)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()
        self.kills += 1

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0
        assert self.process.stderr.read() == ""
        self.process.stderr.close()


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """A server to be killed, on a directory of its own."""
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # Held down: these tests decide when there is a server, not its clients.
    with home_in(tmp_path) as home, home.held_down():
        server = KilledServer(home)
        yield server
        if metrana.is_initialized():
            metrana.close(5)
        server.stop()


def kill_and_start(server, rng, until):
    """Kill and restart at random until told to end."""
    while not until.wait(rng.uniform(0.05, 0.8)):
        server.kill(rng.uniform(0, 0.5) if rng.random() < 0.4 else None)
        if rng.random() < 0.5:
            until.wait(rng.uniform(0, 0.4))
        server.start()


def log_call(run, k):
    """Call number k of every kind; each point's value tells where it belongs."""
    run.log("auto", float(k))
    run.log("explicit", float(k), step=k)
    run.log_distributed("merge", float(k), step=k)
    run.log_rl_episode("auto_episode", [float(k)] * len(ENVS), k, env_id=ENVS)
    run.log_rl_episode("explicit_episode", [float(k)] * len(ENVS), k, [k] * len(ENVS), ENVS)
    episode, j = divmod(k, CALLS_PER_EPISODE)
    grid = np.arange(STEPS, dtype=float)[None, :] + STEPS * j + 1000 * np.arange(4)[:, None]
    run.log_rl_environment_step("auto_reward", grid, k, ENVS, episode)
    run.log_rl_environment_step("endless", grid, k, ENVS)
    run.log_rl_environment_step(
        "explicit_reward", grid, k, ENVS, episode, env_step=np.full(4, STEPS * j)
    )


def check_everything(home, count):
    """All of `count` calls is there once, under its own number."""
    line = [(k, float(k)) for k in range(count)]
    assert home.points("auto") == line
    assert home.points("explicit") == line
    with home.reader() as reader:
        merged = reader.merged("run", "merge")
        assert merged.step.tolist() == [k for k, _ in line]
        assert set(merged.count.tolist()) == {1}
        assert merged.last.tolist() == [v for _, v in line]
        for name in ("auto_episode", "explicit_episode"):
            for env in ENVS:
                found = reader.episode_series("run", name, env_id=env)
                assert found.episode.tolist() == found.value.tolist() == list(range(count))
        calls = np.arange(count)
        episode = np.repeat(calls // CALLS_PER_EPISODE, STEPS)
        in_episode = np.arange(count * STEPS) - episode * CALLS_PER_EPISODE * STEPS
        for e, env in enumerate(ENVS):
            for name in ("auto_reward", "explicit_reward"):
                found = reader.env_series("run", name, env_id=env)
                assert found.episode.tolist() == episode.tolist(), name
                assert found.env_step.tolist() == in_episode.tolist(), name
                assert found.value.tolist() == (in_episode + 1000 * e).tolist(), name
                assert found.rl_step.tolist() == np.repeat(calls, STEPS).tolist(), name
            found = reader.env_series("run", "endless", env_id=env)
            assert found.env_step.tolist() == list(range(count * STEPS))
        ledger = reader.ledger("run")
        points = count * (3 + 2 * len(ENVS) + 3 * len(ENVS) * STEPS)
        assert (ledger.visible, ledger.difference) == (points, 0)
    return points


@pytest.mark.fault_row("D14")
@pytest.mark.parametrize("seed", [*SEEDS, None])
def test_every_point_once_across_kills(killed, seed):
    """Kills at random times: nothing lost, doubled, renumbered; no episode starts again."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    run = killed.home.init()
    over = threading.Event()
    chaos = threading.Thread(target=kill_and_start, args=(killed, rng, over))
    chaos.start()
    count = 0
    try:
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s or killed.kills < 2:
            log_call(run, count)
            count += 1
            time.sleep(0.002)  # a training step: the pace of the loop, nothing is waited for
    finally:
        over.set()
        chaos.join()
    info = run.close(30)
    assert info.is_complete
    assert info.statistics.is_balanced
    assert killed.kills > 1
    points = check_everything(killed.home, count)
    assert info.statistics.committed == points
    assert not {"duplicate", "superseded", "discarded_by_restart"} & {*info.statistics.outcomes}


@pytest.mark.fault_row("D1")
def test_what_flush_promised_survives_both_deaths(killed):
    """Flushed, then client and server are killed at once: every flushed point is there."""
    code = """
        run = metrana.init(run_name="run")
        k = 0
        while True:
            for _ in range(20):
                run.log("auto", float(k)); k += 1
            run.flush()
            print(k, flush=True)
    """
    rng = random.Random(seed := random.SystemRandom().randrange(2**32))
    print("seed", seed)
    home = killed.home
    for _ in range(3):
        head = f"import metrana_sync_shim as metrana\nPROJECT = {home.project!r}\nif True:\n"
        environment = {
            **os.environ,
            "METRANA_DATA_DIR": home.data_dir,
            "METRANA_PROJECT": home.project,
            "METRANA_RESUME_STRATEGY": "allow",
            "METRANA_QUIET": "1",
            "PYTHONPATH": str(ROOT),
        }
        before = len(home.points("auto")) if killed.kills else 0
        client = subprocess.Popen(
            [sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True, env=environment
        )
        client.stdout.readline()
        time.sleep(rng.uniform(0, 0.5))  # the moment of the kill is what is drawn
        killed.process.send_signal(signal.SIGKILL)
        client.kill()
        promised = max(map(int, client.stdout.read().split()), default=0)
        client.wait()
        client.stdout.close()
        killed.kill()
        killed.start()
        points = home.points("auto")
        assert [step for step, _ in points] == list(range(len(points)))
        mine = [value for _, value in points[before:]]
        assert len(mine) >= promised
        assert mine == [float(k) for k in range(len(mine))]
