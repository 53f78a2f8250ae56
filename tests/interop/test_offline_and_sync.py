"""Offline, auto, follow, sync and adoption, from program to server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

import metrana_sync_shim as metrana
from tests.interop import spools
from tests.interop.life import eventually

pytestmark = pytest.mark.e2e

HANG_S = 40.0


@pytest.fixture
def site(place, server, tmp_path):
    """A project behind a network that can be cut."""
    yield from spools.site_of(place, server, tmp_path)


def say_go(program):
    program.stdin.write("\n")
    program.stdin.flush()


def test_several_offline_writers_are_one_run(site):
    """Four ranks of one job without a network; one sync makes one run, the second nothing."""
    job = {"environment": {"METRANA_ORCHESTRATION_ID": "job-7"}}
    ranks = [
        site.begin(
            f"""
            run = metrana.init(run_name="run", init_mode="offline", config={{"by": {rank}}})
            for k in range(100):
                run.log_distributed("loss", {rank} + 0.0, step=k)
                run.log_rl_episode("return", {rank} + 0.0, k, episode=100 * {rank} + k, env_id="e")
            """,
            **job,
        )
        for rank in range(4)
    ]
    for program in ranks:
        status, errors = site.end(program)
        assert status == 0, errors
    assert len(site.directories()) == 4
    assert site.deliver() == 4 * 200
    assert site.deliver() == 0
    info = site.info()
    assert (info.state, len(info.writers), info.orchestration_ids) == ("finished", 4, ("job-7",))
    with site.reader() as reader:
        merged = reader.merged("run", "loss")
        assert (merged.count.tolist(), merged.max.tolist()) == ([4] * 100, [3.0] * 100)
        assert reader.episode_series("run", "return", env_id="e").episode.tolist() == list(
            range(400)
        )


def test_a_job_is_followed_while_it_writes(site):
    """`sync --follow` beside a living offline job: points arrive before it ends, each once."""
    program = site.begin("""
        run = metrana.init(run_name="run", init_mode="offline")
        for k in range(100): run.log("m", float(k))
        run.flush(); say("half"); wait()
        for k in range(100, 200): run.log("m", float(k))
    """)
    assert program.stdout.readline() == "half\n"
    status, reports = site.sync()
    assert (status, [report["state"] for report in reports]) == (1, ["busy"])
    follower = subprocess.Popen(
        [sys.executable, "-m", "metrana_async.cli", "sync", str(site.spool), "--follow", "--json",
         "--url", site.server.address.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=site.variables(), cwd=spools.ROOT,
    )  # fmt: skip
    site.begun.append(follower)
    eventually(lambda: _count(site) == 100, "what is written so far arrives", patience_s=HANG_S)
    status, errors = site.end(program)
    assert status == 0, errors
    out, errors = follower.communicate(timeout=HANG_S)
    assert follower.returncode == 0, errors
    (report,) = [json.loads(line) for line in out.splitlines()]
    assert report["state"] == "delivered"
    assert not site.directories()
    assert site.values() == [float(k) for k in range(200)]
    assert site.info().state == "finished"


def _count(site) -> int:
    try:
        return len(site.points("m"))
    except metrana.NotFoundError:
        return 0


def test_auto_attaches_when_the_server_comes(site):
    """Started without one, joined later, all in order; attributes and automatic steps too."""
    site.proxy.refuse()
    program = site.begin("""
        run = metrana.init(run_name="run", init_mode="auto", config={"lr": 0.1}, tags=["t"])
        for k in range(500): run.log("m", float(k))
        say(run.flush(20).spooled); wait()
        while run.get_metrics().committed < 500:
            run.log("other", 1.0); time.sleep(0.05)
        for k in range(500, 600): run.log("m", float(k))
        say(run.get_last_step("m"))
        assert run.close(50).is_complete
    """)
    assert program.stdout.readline() == "500\n"
    site.proxy.listen()
    status, errors = site.end(program, timeout_s=80)
    assert status == 0, errors
    assert not site.directories()
    assert site.values() == [float(k) for k in range(600)]
    info = site.info()
    assert (info.state, info.config, info.tags) == ("finished", {"lr": 0.1}, ("t",))


def test_a_name_that_is_taken_is_kept_and_can_be_changed(site):
    """Auto is refused later: told with the command that helps, kept, and sent under a new name."""
    with metrana.init(
        project_name=site.project, run_name="run", orchestration_id="theirs", quiet=True,
        data_dir=str(site.server.data_dir),
    ) as theirs:  # fmt: skip
        theirs.log("m", -1.0)
    site.proxy.refuse()
    program = site.begin(
        """
        import warnings
        told = threading.Event()
        def show(message, *rest, **more):
            print(message, file=sys.stderr)
            if "--rename-to" in str(message): told.set()
        warnings.showwarning = show
        run = metrana.init(run_name="run", init_mode="auto")
        run.log("m", [1.0, 2.0])
        assert run.flush(20).spooled == 2
        say("spooled"); wait()
        assert told.wait(30)
        run.log("m", 3.0)
        """,
        environment={"METRANA_ORCHESTRATION_ID": "mine"},
    )
    assert program.stdout.readline() == "spooled\n"
    site.proxy.listen()
    status, errors = site.end(program, timeout_s=80)
    assert status == 0, errors
    assert "--rename-to" in errors
    status, (report,) = site.sync()
    assert (status, report["state"]) == (1, "kept")
    assert "rename" in report["text"]
    assert site.values() == [-1.0]
    status, (report,) = site.sync("--rename-to", "mine")
    assert (status, report["state"]) == (0, "delivered"), report
    assert site.values(run="mine") == [1.0, 2.0, 3.0]
    assert site.values() == [-1.0]


def test_what_a_dead_process_left_is_adopted_by_the_next(site):
    """Killed in an outage; a later process that logs something else delivers it by itself."""
    program = site.begin("""
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        for k in range(1, 1000): run.log("m", float(k))
        assert run.flush(30).spooled
        say("spooled")
        time.sleep(60)
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    say_go(program)
    assert program.stdout.readline() == "spooled\n"
    program.kill()
    program.wait()
    site.proxy.listen()
    heir = site.begin("""
        run = metrana.init(run_name="heir")
        run.log("m", 1.0)
        say("up"); wait()
    """)
    assert heir.stdout.readline() == "up\n"
    eventually(lambda: not site.directories(), "it is adopted", patience_s=HANG_S)
    assert site.end(heir) == (0, "")
    assert site.values() == [float(k) for k in range(1000)]
    assert site.info().state == "crashed"
    assert site.info("heir").state == "finished"


def test_a_second_init_looks_for_leftovers_at_once(site):
    """Also in a process that has looked before, and would look again much later."""
    heir = site.begin("""
        from metrana_async import leftovers
        leftovers.ADOPT_EVERY_S = 3600.0
        metrana.init(run_name="first")
        say("up"); wait()
        metrana.init(run_name="second")
        say("again"); wait()
    """)
    assert heir.stdout.readline() == "up\n"
    site.proxy.refuse()
    dead = site.begin("""
        run = metrana.init(run_name="run", init_mode="auto")
        run.log("m", [1.0, 2.0])
        assert run.flush(30).spooled == 2
        say("spooled"); time.sleep(60)
    """)
    assert dead.stdout.readline() == "spooled\n"
    dead.kill()
    dead.wait()
    site.proxy.listen()
    say_go(heir)
    assert heir.stdout.readline() == "again\n"
    eventually(lambda: not site.directories(), "it is adopted", patience_s=HANG_S)
    status, errors = site.end(heir)
    assert status == 0, errors
    assert site.values() == [1.0, 2.0]


def test_a_sibling_that_lives_is_not_adopted(site):
    """Two processes in an outage: neither touches the other's directory while it lives."""
    site.proxy.refuse()
    programs = [
        site.begin(f"""
            run = metrana.init(run_name="run{n}", init_mode="auto")
            for k in range(200): run.log("m", float(k))
            assert run.flush(30).spooled == 200
            say("spooled"); wait()
            while run.get_metrics().committed < 200: time.sleep(0.05)
        """)
        for n in range(2)
    ]
    for program in programs:
        assert program.stdout.readline() == "spooled\n"
    status, reports = site.sync()
    assert (status, [report["state"] for report in reports]) == (1, ["busy", "busy"])
    site.proxy.listen()
    for program in programs:
        status, errors = site.end(program, timeout_s=80)
        assert status == 0, errors
    for n in range(2):
        assert site.values(run=f"run{n}") == [float(k) for k in range(200)]
        assert len(site.info(f"run{n}").writers) == 1


def test_a_copy_is_delivered_while_the_owner_lives(site, tmp_path):
    """A copy of a living job's spool adds what is there; the original adds the rest, once."""
    program = site.begin("""
        run = metrana.init(run_name="run", init_mode="offline")
        for k in range(100): run.log("m", float(k))
        run.flush(); say("half"); wait()
        for k in range(100, 150): run.log("m", float(k))
    """)
    assert program.stdout.readline() == "half\n"
    copy = tmp_path / "copy"
    shutil.copytree(site.spool, copy)
    status, (report,) = site.sync(spool=copy)
    assert (status, report["state"]) == (0, "delivered")
    assert site.values() == [float(k) for k in range(100)]
    status, errors = site.end(program)
    assert status == 0, errors
    assert site.deliver() == 50
    assert site.values() == [float(k) for k in range(150)]
    assert site.info().state == "finished"


def test_a_run_that_was_deleted_is_set_aside(site):
    """The run is deleted while its spool is on its way: nothing comes back, nothing is removed."""
    program = site.begin("""
        run = metrana.init(run_name="run")
        run.log("m", 0.0); run.flush(20)
        say("up"); wait()
        run.log("m", 1.0)
        assert run.flush(30).spooled == 1
        say("spooled"); time.sleep(60)
    """)
    assert program.stdout.readline() == "up\n"
    site.proxy.refuse()
    say_go(program)
    assert program.stdout.readline() == "spooled\n"
    program.kill()
    program.wait()
    with site.reader() as reader:
        reader.delete_run("run")
    status, (report,) = site.sync()
    assert (status, report["state"]) == (1, "set_aside"), report
    assert len(site.directories()) == 1
    status, (again,) = site.sync()
    assert (status, again["state"]) == (1, "set_aside")
    with site.reader() as reader:
        assert not reader.runs()


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_environments_in_processes(site, tmp_path, context):
    """An asynchronous vector of environments beside an offline run: both end, all is there."""
    script = tmp_path / "program.py"
    script.write_text(f"""
import gymnasium
import metrana_sync_shim as metrana

def make():
    return gymnasium.make("CartPole-v1")

if __name__ == "__main__":
    run = metrana.init(run_name="run", init_mode="offline")
    envs = gymnasium.vector.AsyncVectorEnv([make] * 2, context={context!r})
    envs.reset(seed=1)
    for k in range(50):
        reward = envs.step(envs.action_space.sample())[1]
        run.log_rl_environment_step("reward", reward, k, ["a", "b"])
    run.log("m", [1.0, 2.0])
    # Neither the environments nor the run are closed.
""")
    done = subprocess.run(
        [sys.executable, str(script)], env=site.variables(), capture_output=True, text=True,
        timeout=58, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert site.deliver() == 102
    assert site.values() == [1.0, 2.0]
    with site.reader() as reader:
        for env in ("a", "b"):
            found = reader.env_series("run", "reward", env_id=env)
            assert found.env_step.tolist() == list(range(50))
    assert len(site.info().writers) == 1
