"""The real Ray: driver, pre-started workers, async and threaded actors in one run."""

from __future__ import annotations

import textwrap

import pytest

from tests.launchers.conftest import BIN, EXAMPLES

pytestmark = [pytest.mark.launchers, pytest.mark.e2e, pytest.mark.timeout(300)]

PYTHON = BIN / "python"


@pytest.mark.fault_row("G5")
def test_actors_of_every_kind_log_to_one_run(launch):
    """Two actors on one environment, an async and a threaded one, tasks: nothing is lost."""
    out = launch(PYTHON, EXAMPLES / "ray_rollouts.py")
    assert "episodes were played by 2 processes" in out
    run = launch.only_run("rollouts")
    assert run.orchestration_id.startswith("session_")
    with launch.reader("rollouts") as reader:
        reward = reader.env_series(run.name, "reward", env_id="env0")
        assert reward.episode.tolist() == [k for k in range(20) for _ in range(20)]
        assert reward.env_step.tolist() == list(range(20)) * 20
        returns = reader.episode_series(run.name, "return", env_id="env0")
        assert returns.episode.tolist() == list(range(20))
        sums = reward.value.reshape(20, 20).sum(axis=1)
        assert returns.value == pytest.approx(sums)
        assert reader.merged(run.name, "policy_loss").count.tolist() == [4] * 50
        assert reader.merged(run.name, "value_loss").last.tolist() == list(map(float, range(50)))
        assert reader.merged(run.name, "task").step.tolist() == list(range(4))
        ledger = reader.ledger(run.name)
    assert ledger.committed == 400 + 20 + 200 + 50 + 4 + 1
    assert not any(
        ledger.counters.get(kind) for kind in ("duplicate", "superseded", "discarded_by_restart")
    )


def test_two_jobs_do_not_meet(launch):
    """A second driver with the same name is another job, and is told so."""
    launch(PYTHON, EXAMPLES / "ray_rollouts.py")
    job = launch.start(PYTHON, EXAMPLES / "ray_rollouts.py")
    out, _ = job.communicate(timeout=150)
    assert job.returncode != 0
    assert "RunAlreadyExistsError" in out


NODES = """
    import ray
    from ray.cluster_utils import Cluster
    from metrana_async import orchestration
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address)
    nodes = ray.nodes()
    print("nodes", sum(node["Alive"] for node in nodes), "spread", orchestration.spans_hosts())
    for node, host in zip(nodes, ("a", "b")):
        node["NodeManagerHostname"] = host
    ray.nodes = lambda: nodes
    print("then", orchestration.spans_hosts())
"""


def test_several_nodes_are_noticed(launch):
    """Two Ray nodes of one host share its server; on two hosts they need a URL."""
    out = launch(PYTHON, "-c", textwrap.dedent(NODES))
    assert "nodes 2 spread None" in out
    assert "then 2 Ray nodes" in out
