"""The peers' tables, their adapters and their pins."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from benchmarks.peers import table
from benchmarks.peers.roster import PEERS
from benchmarks.peers.timing import bare, clocked, together
from benchmarks.peers.workloads import WORKLOADS, Calls, rollouts, scaled

HERE = Path(table.__file__).parent


def answer(mean_us: float, cpu_s: float) -> dict:
    return {"calls": 10, "points": 10, "mean_us": mean_us, "cpu_s": cpu_s, "bytes": 20}


def test_ratios_are_multiples_of_ours():
    """The median of a peer's repeats over the median of ours; a dash where a peer has no figure."""
    answers = {
        ("scalar", "ours"): [answer(1.0, 1.0), answer(2.0, 2.0), answer(9.0, 9.0)],
        ("scalar", "other"): [answer(8.0, 1.0)],
        ("block", "ours"): [answer(5.0, 1.0)],
    }
    lines = table.ratios(answers)
    assert "| ours | 1 | 1 |" in lines
    assert "| other | 4 | – |" in lines
    assert "| other | 0.5 | – |" in lines


def test_a_table_has_the_fastest_first_and_bytes_a_point():
    """Rows are in the order of the mean; derived figures are per point."""
    answers = {
        ("scalar", "slow"): [answer(8.0, 1.0)],
        ("scalar", "ours"): [answer(2.0, 1.0)],
    }
    rows = [line for line in table.tables(answers) if line.startswith(("| ours", "| slow"))]
    assert [line.split(" | ")[0] for line in rows] == ["| ours", "| slow"]
    assert rows[1].endswith("| 2 | 4 |")


def test_every_peer_has_an_adapter_and_pinned_requirements():
    """A module, and for those with an environment a file that pins each package it names."""
    for peer in PEERS:
        assert (HERE / "adapters" / f"{peer.adapter}.py").exists()
        if peer.environment:
            lines = (HERE / "requirements" / f"{peer.environment}.txt").read_text().split("\n")
            wrong = [line for line in lines if line and not re.match(r"-r |[\w-]+==[\d.]+$", line)]
            assert not wrong
    assert len({peer.name for peer in PEERS}) == len(PEERS)


def test_rollouts_are_consecutive():
    """An environment's episode never falls, within a rollout and from one to the next."""
    import numpy as np

    made = rollouts(np.random.default_rng(0), 5, (3, 200))
    episodes = np.concatenate([episodes for _, episodes in made], axis=1)
    assert episodes.shape == (3, 1000)
    steps = np.diff(episodes, axis=1)
    assert set(np.unique(steps)) == {0, 1}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_data_of_a_workload_suffices_for_all_its_calls(name):
    """A first call and two whole loops find their data; points a call are as stated."""

    class Counting:
        points = 0

        def scalar(self, name, value, step):
            self.points += 1

        def mapping(self, values, step):
            self.points += len(values)

        def block(self, values, episodes, rl_step):
            assert values.shape == episodes.shape
            self.points += values.size

    workload = scaled(name, 0.01)
    client = Counting()
    call = Calls(workload).of(client)
    calls = 2 * workload.calls + 1
    for number in range(calls):
        call(number)
    assert client.points == calls * workload.points


def test_loops_call_each_number_once_and_stop_when_the_time_is_over():
    """The bare and the clocked loop go through their numbers in order; a limit of 0 s ends both."""
    seen = []
    loop = bare(seen.append, 1, 5_000, math.inf)
    took_ns = clocked(seen.append, 1 + loop.calls, 100, math.inf)
    assert seen == list(range(1, 5_101))
    assert took_ns.size == 100
    assert (took_ns >= 0).all()
    assert bare(seen.append, 0, 10, 0.0).calls == 0
    assert clocked(seen.append, 0, 10, 0.0).size == 1


def test_threads_start_together_and_are_waited_for():
    """Nobody begins before all are there, and all are done at the end."""
    import threading

    barrier = threading.Barrier(3)
    together([lambda: barrier.wait(10)] * 3)
    assert not barrier.broken
