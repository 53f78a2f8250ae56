"""The driver of the comparison with other loggers, with this client and tiny numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.peers.driver import Effort, PeerFailed, measure
from benchmarks.peers.roster import PEERS
from benchmarks.peers.workloads import WORKLOADS

TINY = Effort(scale=0.002, limit_s=20.0)
BY_NAME = {peer.name: peer for peer in PEERS}


@pytest.mark.e2e
@pytest.mark.parametrize("workload", ["scalar", "dict20", "block", "threads", "processes"])
def test_every_call_is_logged_and_stored(workload, tmp_path):
    """Two whole loops and no loss (the adapter checks the ledger); every figure is there."""
    answer = measure(BY_NAME["ours"], workload, TINY, tmp_path)
    shape = WORKLOADS[workload]
    calls = max(1, int(shape.calls * TINY.scale)) * 2 * shape.threads * shape.processes
    assert answer["calls"] == calls
    assert answer["points"] == calls * shape.points
    for figure in ("mean_us", "p50_us", "caller_us", "durable_s", "cpu_s", "memory_mb", "bytes"):
        assert answer[figure] > 0, figure
    assert answer["p50_us"] <= answer["p99_us"] <= answer["max_us"]
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
def test_what_was_written_is_read_back_by_another_process(tmp_path):
    """The reader counts the points that the writer logged."""
    assert measure(BY_NAME["ours"], "read", TINY, tmp_path)["points"] == 2_000


@pytest.mark.e2e
def test_without_a_server_it_is_on_the_disk(tmp_path):
    """The offline adapter leaves its points in the spool."""
    answer = measure(BY_NAME["ours, offline"], "scalar", TINY, tmp_path)
    assert answer["bytes"] >= answer["points"]


def test_who_cannot_do_it_says_why(tmp_path):
    """A peer that is not installed, and one whose process ends: its last words are passed on."""
    with pytest.raises(PeerFailed, match="is not installed"):
        measure(replace(BY_NAME["ours"], environment="nobody"), "scalar", TINY, tmp_path)
    with pytest.raises(PeerFailed, match="adapters.nobody"):
        measure(replace(BY_NAME["yardstick"], adapter="nobody"), "scalar", TINY, tmp_path)
