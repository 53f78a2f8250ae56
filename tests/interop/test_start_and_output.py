"""What a program sees at its start: variables, names, the second start, and where text goes."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile

import numpy as np
import pytest

import metrana_sync_shim as metrana
from metrana_async.errors import DataLossError, MetranaWarning, RunAlreadyExistsError
from metrana_async.settings import _ENVIRONMENT

pytestmark = pytest.mark.e2e

# Variable, its value, and what a script then sees; `settings` are those of the run it opens.
SPOOL = f"{tempfile.mkdtemp()}/spool"
VARIABLES = {
    "METRANA_WORKSPACE": ("lab", "settings.workspace_name == 'lab'"),
    "METRANA_PROJECT": ("other project", "settings.project_name == 'other project'"),
    "METRANA_RUN_NAME": ("named", "run.name == 'named'"),
    "METRANA_INGESTION_URL": ("http://127.0.0.1:9", "'127.0.0.1:9' in str(failure)"),
    "METRANA_RESUME_STRATEGY": ("allow", "settings.resume_strategy == 'allow'"),
    "METRANA_INIT_MODE": ("disabled", "run.flush().accepted == 0"),
    "METRANA_BACKPRESSURE_STRATEGY": ("drop_new", "settings.backpressure_strategy == 'drop_new'"),
    "METRANA_DELIVERY_POLICY": ("all_or_crash", "settings.delivery_policy == 'all_or_crash'"),
    "METRANA_COMPRESSION": ("zstd", "settings.compression == 'zstd'"),
    "METRANA_ON_ERROR": ("warn", "run.log('bad', 'text') is None"),
    "METRANA_LOG_LEVEL": ("debug", "logging.getLogger('metrana_async').level == logging.DEBUG"),
    "METRANA_DEFAULT_DTYPE": ("float64", "value(run) == 0.1"),
    "METRANA_API_KEY": ("key", "settings.api_key == 'key' and 'key' not in repr(settings)"),
    "METRANA_LOGGER_ID": ("7", "settings.logger_id == '7'"),
    "METRANA_DATA_DIR": (None, "settings.data_dir is None"),
    "METRANA_DISK_SPOOL_DIR": (SPOOL, f"settings.disk.path == {SPOOL!r}"),
    "METRANA_EVENT_QUEUE_MAX_SIZE": ("1234", "settings.queue_capacity == 1234"),
    "METRANA_INIT_TIMEOUT_SECS": ("77", "settings.init_timeout_secs == 77.0"),
    "METRANA_QUIET": ("0", "True"),
    "METRANA_REDACT": ("no", "not settings.redact"),
}


def test_every_variable_is_in_the_table():
    """No setting of the environment goes untested."""
    assert VARIABLES.keys() == set(_ENVIRONMENT.values())


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_obeyed(place, name):
    """Set, it decides; and a script that gives the argument decides over it."""
    given, seen = VARIABLES[name]
    environment = {"METRANA_RUN_NAME": "run", "METRANA_INIT_TIMEOUT_SECS": "10"}
    if name == "METRANA_INGESTION_URL":
        environment["METRANA_INIT_TIMEOUT_SECS"] = "1"
    if given is not None:
        environment[name] = given
    done = place.script(
        f"""
        import logging, warnings
        warnings.simplefilter("ignore")
        def value(run):
            run.log("v", 0.1)
            run.flush()
            with metrana.QueryClient(project=PROJECT) as reader:
                return reader.series(run.name, "v").value[0]
        failure = None
        try:
            run = metrana.init()
            settings = run._run.settings
        except metrana.InitError as error:
            failure = error
        assert {
            seen.replace("is None", "== os.environ['METRANA_DATA_DIR']")
            if given is None and "data_dir" in seen
            else seen
        }
        if failure is None:
            run.close()
        """,
        **environment,
    )
    assert done.returncode == 0, done.stderr
    assert ("started run" in done.stderr) == (name == "METRANA_QUIET")


def test_a_run_without_a_name_gets_a_readable_one(place):
    """Two words and a number, another one each time."""
    found = set()
    for _ in range(3):
        with place.init(None) as run:
            run.log("m", 1.0)
        found.add(run.name)
    assert len(found) == 3
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-\w+", name) for name in found), found


def test_the_second_start_of_a_script_names_the_ways_on(place):
    """Refused, naming both ids; each of the three ways works."""
    script = 'run = metrana.init(run_name="fixed"{}); run.log("m", 1.0); run.close()'
    first = place.script(script.format(""), METRANA_ORCHESTRATION_ID="job-1")
    assert first.returncode == 0, first.stderr
    second = place.script(script.format(""), METRANA_ORCHESTRATION_ID="job-2")
    assert second.returncode == 1
    (text,) = [line for line in second.stderr.splitlines() if "RunAlreadyExistsError" in line]
    for part in ("job-1", "job-2", "run_name", "resume_strategy='allow'", "orchestration_id"):
        assert part in text, text
    for more in (', resume_strategy="allow"', ', orchestration_id="job-1"'):
        done = place.script(script.format(more), METRANA_ORCHESTRATION_ID="job-2")
        assert done.returncode == 0, done.stderr
    other = place.script(script.replace("fixed", "other").format(""))
    assert other.returncode == 0, other.stderr
    assert [step for step, _ in place.points("m", "fixed")] == [0, 1, 2]
    with pytest.raises(RunAlreadyExistsError):
        place.init("fixed", orchestration_id="job-3")


def test_on_error_decides_what_a_mistake_does(place):
    """raise: at the call. warn: once for each cause, counted, and the program goes on."""
    with place.init() as run, pytest.raises(metrana.ValidationError):
        run.log("x", "text")
    with pytest.warns(MetranaWarning, match="text") as told:  # noqa: PT031 - the whole run is meant
        run = place.init("warning", on_error="warn")
        for _ in range(100):
            run.log("x", "text")
            run.log_rl_episode("e", 1.0, "first")
        run.log("x", 1.0)
        info = run.close(30)
    assert 1 <= len(told) <= 2
    assert info.statistics.usage_errors == 200
    assert place.points("x", "warning") == [(0, 1.0)]


def test_all_or_crash_and_tolerate_loss(place):
    """The same loss raises under one policy and is told in the result under the other."""
    for policy in ("tolerate_loss", "all_or_crash"):
        run = place.init(
            policy, delivery_policy=policy, backpressure_strategy="drop_new", queue_capacity=10
        )
        with contextlib.suppress(DataLossError):
            for _ in range(200):
                run.log("x", np.ones(9))
        if policy == "all_or_crash":
            with pytest.raises(DataLossError, match="drop_new"):
                run.close(30)
        else:
            assert run.close(30).statistics.lost["drop_new"] > 0


def loud(place, name: str) -> metrana.Run:
    return metrana.init(project_name=place.project, run_name=name, data_dir=place.data_dir)


def test_text_goes_to_stderr_as_it_is_now(place, capsys):
    """Pytest's capture sees the start line; stdout stays the program's."""
    loud(place, "captured").close(30)
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("metrana: started run default/")
    assert seen.err.count("\n") == 1


def test_text_of_the_process_is_captured_too(place, capfd):
    """Also by descriptor, and nothing else is written there by the client or its server."""
    place.init("quiet").close(30)
    assert capfd.readouterr() == ("", "")


def test_redirected_streams(place):
    """A redirected or closed stderr is used, or survived; stdout is never written to."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        loud(place, "redirected").close(30)
    assert out.getvalue() == ""
    assert "redirected" in err.getvalue()
    for stream in ("None", "open(os.devnull)"):
        done = place.script(
            f"""
            import metrana_async
            sys.stderr = {stream}
            run = metrana.init(run_name={stream!r}, quiet=False)
            run.log("m", 1.0)
            run.close()
            """
        )
        assert done.returncode == 0, (stream, done)
        assert place.points("m", stream) == [(0, 1.0)]
