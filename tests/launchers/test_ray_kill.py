"""An actor of the real Ray is killed: what it flushed is stored, what it spooled arrives."""

from __future__ import annotations

import textwrap

import pytest

from tests.launchers.conftest import BIN

pytestmark = [pytest.mark.launchers, pytest.mark.e2e, pytest.mark.timeout(300)]

PYTHON = BIN / "python"

SCRIPT = """
    import os, socket, subprocess, sys, time
    import ray
    import metrana_sync_shim as metrana

    folder = os.environ["METRANA_DATA_DIR"]
    os.makedirs(folder, mode=0o700, exist_ok=True)
    token = os.path.join(folder, "token")
    with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("k" * 40)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    URL = f"http://127.0.0.1:{port}"

    def serve():
        words = ["-m", "metrana_async.server", "--port", str(port), "--token-file", token]
        server = subprocess.Popen([sys.executable, *words, "--data-dir", folder + "/own"])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return server
            time.sleep(0.05)
        raise SystemExit("the server did not start")

    os.environ["METRANA_API_KEY"] = "k" * 40
    server = serve()
    ray.init("local", num_cpus=2, log_to_driver=False)

    @ray.remote
    class Actor:
        async def log(self, first, last):
            import metrana_async
            if first == 0:
                self.run = await metrana_async.init(
                    project_name="killed", run_name="run", ingestion_url=URL
                )
            for step in range(first, last):
                await self.run.log("loss", float(step), step=step)
            statistics = await self.run.flush(30)
            return statistics.committed, statistics.spooled

    actor = Actor.remote()
    print("flushed", ray.get(actor.log.remote(0, 500)))
    server.kill()
    server.wait()
    print("kept", ray.get(actor.log.remote(500, 1000)))
    ray.kill(actor)
    server = serve()
    reports = metrana.replay_spool()
    while any(report.state == "busy" for report in reports):
        time.sleep(0.2)  # the killed process is still being taken apart
        reports = metrana.replay_spool()
    print("reports", [(report.state, report.statistics.committed) for report in reports])
    with metrana.QueryClient("killed", url=URL, token="k" * 40) as reader:
        series = reader.series("run", "loss")
        print("stored", len(series.step), series.step.tolist() == list(range(1000)))
        print("state", reader.run("run").state)
    ray.shutdown()
    server.terminate()
    server.wait()
"""


def test_a_killed_actor_loses_nothing_it_had_flushed_or_spooled(launch):
    """US-50: no exit hook runs in a killed actor; its spool is delivered under its own identity."""
    out = launch(PYTHON, "-c", textwrap.dedent(SCRIPT))
    assert "flushed (500, 0)" in out
    assert "kept (500, 500)" in out
    assert "reports [('delivered', 500)]" in out
    assert "stored 1000 True" in out
    assert "state crashed" in out
