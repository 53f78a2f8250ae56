"""Every logging call from every kind of caller stores the same points and attributes."""

from __future__ import annotations

import inspect
import os
import pprint
import textwrap
from pathlib import Path

import numpy as np
import pytest

import metrana_async
import metrana_sync_shim

from . import api_calls
from .conftest import ROOT, Place

pytestmark = pytest.mark.e2e

SURFACES = {"run": False, "module": True}


def stored(place: Place, name: str) -> dict:
    """Everything that can be read of a run, without what differs between two runs anyhow."""
    found: dict = {}
    with place.reader() as reader:
        run = reader.run(name)
        found["run"] = (run.config, run.attributes, run.tags, run.description, run.state)
        ledger = reader.ledger(name)
        found["ledger"] = (ledger.visible, ledger.committed, ledger.difference)
        found["environments"] = [str(env) for env in reader.environments(name)]
        found["attributes"] = sorted(
            (a.path, repr(a.value), str(a.env_id), str(a.episode)) for a in reader.attributes(name)
        )
        for series in reader.metrics(name):
            labels = dict(series.labels)
            key = (series.family, series.metric, series.scale, *sorted(labels.items()))
            if str(series.family).endswith("episode"):
                table = reader.episode_series_all(name, series.metric, labels=labels)
            elif str(series.family).endswith("env_step"):
                table = reader.env_series_all(name, series.metric, labels=labels)
            elif series.metric.startswith("d/"):
                table = reader.merged(name, series.metric, labels=labels)
            else:
                more = {"scale": series.scale, "labels": labels}
                table = reader.series(name, series.metric, **more)
            # Values of one batch may be kept in the widest width among them: equal all the same.
            columns = {k: (v.dtype.kind, v.tolist()) for k, v in table.columns().items()}
            # The call's own time differs between two runs; a time that was given does not.
            if max(columns["time_ms"][1]) > api_calls.T0 + 10:
                del columns["time_ms"]
            found[key] = (series.ordering, series.episodic, getattr(table, "env_ids", ()), columns)
    return found


def differences(left: dict, right: dict) -> list:
    """What two states differ in; NaN equals NaN, and a mapping has no order."""
    return [
        f"{key}: {left.get(key)} != {right.get(key)}"
        for key in left.keys() | right.keys()
        if pprint.pformat(left.get(key)) != pprint.pformat(right.get(key))
    ]


@pytest.fixture(scope="module")
def expected() -> dict[str, dict]:
    """What the first caller stored, which the first test holds to what is written there."""
    return {}


def values(state: dict, metric: str, column: str = "value") -> list:
    (found,) = [entry[3] for key, entry in state.items() if metric in key]
    return found[column][1]


def check(state: dict) -> None:
    """Some of what must be there, from the semantics, call by call."""
    assert values(state, "s/scalar") == [0.5, 1.0, 2.5, 1.0]
    assert np.isnan(values(state, "s/nan")).all()
    assert values(state, "s/stepped", "step") == [7, 8]
    assert values(state, "s/array", "step") == [0, 1, 2, 3, 4, 10, 11, 12]
    assert values(state, "s/steps", "time_ms") == [api_calls.T0, api_calls.T0 + 1]
    assert values(state, "s/double") == [0.1]
    assert values(state, "s/half") == [float(np.float16(0.1))]
    assert values(state, "s/int") == [2.0]
    assert values(state, "map/b/c") == [2.0, 4.0]
    assert (values(state, "d/scalar", "min"), values(state, "d/scalar", "max")) == ([1.0], [2.0])
    assert values(state, "ep/auto", "episode") == [0, 1]
    assert values(state, "ep/vector", "episode") == [4, 5, 4]
    assert values(state, "ep/auto_vector", "episode") == [0, 1, 0]
    assert values(state, "st/mt") == [
        *(0.0, 1.0, 2.0, 3.0, 100.0, 101.0, 102.0, 103.0),
        *(4.0, 5.0, 6.0, 7.0, 104.0, 105.0, 106.0, 107.0),
        *(8.0, 9.0, 10.0, 11.0, 108.0, 109.0, 110.0, 111.0),
    ]
    assert values(state, "st/mask") == [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0]
    assert values(state, "st/tm") == values(state, "st/no_episode") == list(range(12))
    assert values(state, "st/one", "env_step") == [1, 2, 3, 4] * 3
    assert values(state, "st/start", "env_step") == [5, 6, 7, 8, 0, 1, 2, 3, 1, 2, 3, 4]
    assert values(state, "st/exact", "env_step") == [0, 4]
    assert values(state, "st/mixed", "env_step") == [0, 1, 0, 1]
    assert ("seed", "3", "e0", "None") in state["attributes"]
    assert ("won", "True", "e0", "5") in state["attributes"]
    config, attributes, tags, description, run_state = state["run"]
    assert (
        config["net"]["layers"] == [64, 64] if "net" in config else config["net/layers"] == [64, 64]
    )
    assert attributes
    assert (sorted(tags), description, run_state) == (["a", "c"], "every call once", "finished")


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("caller", api_calls.CALLERS)
def test_every_call_of_every_caller_stores_the_same(place, expected, caller, surface):
    """asyncio, uvloop, trio, shim, thread, shim inside a loop; methods and module functions."""
    answers = api_calls.CALLERS[caller](
        is_module=SURFACES[surface],
        project_name=place.project,
        run_name="run",
        data_dir=place.data_dir,
        quiet=True,
    )
    assert answers == api_calls.ANSWERS
    state = stored(place, "run")
    check(state)
    assert differences(state, expected.setdefault("state", state)) == []


CELLS = [
    """
    import asyncio, sys
    sys.path.insert(0, {root!r})
    import metrana_async, metrana_sync_shim
    from tests.interop import api_calls
    names = dict(project_name={project!r}, data_dir={data_dir!r}, quiet=True)
    policy, run_original = asyncio.get_event_loop_policy(), asyncio.run
    hooks = {{k: list(v) for k, v in get_ipython().events.callbacks.items()}}
    """,
    "run = await metrana_async.init(run_name='awaited', **names)",
    "assert await api_calls.log_all(run) == api_calls.ANSWERS",
    "await run.close(30)",
    "run = metrana_sync_shim.init(run_name='blocking', **names)",
    "assert api_calls.log_all_blocking(metrana_sync_shim) == api_calls.ANSWERS",
    "metrana_sync_shim.close(30)",
    """
    assert asyncio.run is run_original and asyncio.get_event_loop_policy() is policy
    assert hooks == {{k: list(v) for k, v in get_ipython().events.callbacks.items()}}
    """,
]


def run_notebook(place: Place, tmp_path: Path, cells: list[str], **options):
    """Execute cells in a real kernel; each is one cell of a notebook."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    names = {"root": str(ROOT), "project": place.project, "data_dir": place.data_dir}
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(textwrap.dedent(cell).strip().format(**names))
            for cell in cells
        ]
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("METRANA_")}
    client = nbclient.NotebookClient(
        notebook,
        timeout=50,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
        **options,
    )
    client.execute(env={**environment, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)})
    return notebook


@pytest.mark.filterwarnings("ignore")
def test_every_call_in_a_notebook_kernel_stores_the_same(place, expected, tmp_path):
    """Awaited and blocking calls in the running loop of a kernel; nothing is patched or hooked."""
    run_notebook(place, tmp_path, CELLS)
    for name in ("awaited", "blocking"):
        state = stored(place, name)
        check(state)
        assert differences(state, expected.setdefault("state", state)) == []


def test_the_matrix_has_every_call():
    """Whatever a run can log is among the calls above."""
    prefixes = ("log", "set_", "add_", "remove_")
    logging = {name for name in dir(metrana_async.Run) if name.startswith(prefixes)}
    assert logging == {name for name, _, _ in api_calls.CALLS}
    used = {}
    for name, args, kwargs in api_calls.CALLS:
        bound = inspect.signature(getattr(metrana_async.Run, name)).bind(None, *args, **kwargs)
        used.setdefault(name, set()).update(bound.arguments)
    for name, arguments in used.items():
        wanted = set(inspect.signature(getattr(metrana_async.Run, name)).parameters)
        assert wanted - arguments <= {"timestamp", "evaluation", "dtype", "scale"}, name


@pytest.mark.parametrize("name", sorted(metrana_async.current.__dict__))
def test_twins_have_one_signature(name):
    """Module functions, methods, and both surfaces: the same parameters and defaults."""
    function = getattr(metrana_async.current, name)
    if not inspect.isfunction(function) or name not in metrana_async.__all__:
        return

    def shape(found) -> list[tuple]:
        parameters = inspect.signature(found).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]

    assert shape(function) == shape(getattr(metrana_sync_shim, name))
    if name not in {"init", "current_run"}:
        assert shape(function) == shape(getattr(metrana_async.Run, name))
        assert shape(function) == shape(getattr(metrana_sync_shim.Run, name))
