"""Facts about settings: argument, then environment, then default; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from metrana_async.errors import InitError
from metrana_async.settings import DiskConfig, resolve_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("METRANA_"):
            monkeypatch.delenv(name)


def test_defaults():
    """A project is all that is needed."""
    settings = resolve_settings(project_name="p")
    assert (settings.workspace_name, settings.run_name) == ("default", None)
    assert settings.resume_strategy == "never"
    assert settings.backpressure_strategy == "block"
    assert settings.delivery_policy == "tolerate_loss"


def test_argument_beats_environment_beats_default(monkeypatch):
    """The nearest source wins, and an empty variable counts as unset."""
    monkeypatch.setenv("METRANA_PROJECT", "env")
    monkeypatch.setenv("METRANA_RESUME_STRATEGY", "allow")
    monkeypatch.setenv("METRANA_INIT_MODE", "")
    settings = resolve_settings()
    assert (settings.project_name, settings.resume_strategy) == ("env", "allow")
    assert settings.init_mode == "online"
    assert resolve_settings(project_name="arg").project_name == "arg"


def test_no_project_is_refused():
    """The refusal names the argument and the variable."""
    with pytest.raises(InitError, match=r"project_name=.*METRANA_PROJECT"):
        resolve_settings()


@pytest.mark.parametrize("spelled", ["drop_new", "DropNew", "DROP_NEW", "drop-new"])
def test_choices_are_spelled_freely(spelled):
    """Hosted spellings of enum members are understood."""
    settings = resolve_settings(project_name="p", backpressure_strategy=spelled)
    assert settings.backpressure_strategy == "drop_new"


def test_an_unknown_choice_names_the_choices(monkeypatch):
    """The refusal lists what is possible and where the value came from."""
    with pytest.raises(InitError, match="block, drop_new, raise"):
        resolve_settings(project_name="p", backpressure_strategy="wait")
    monkeypatch.setenv("METRANA_DELIVERY_POLICY", "maybe")
    with pytest.raises(InitError, match="METRANA_DELIVERY_POLICY='maybe'"):
        resolve_settings(project_name="p")


@pytest.mark.parametrize(
    "arguments",
    [
        {"init_mode": "offline"},
        {"init_mode": "auto"},
        {"backpressure_strategy": "spool_then_raise"},
    ],
)
def test_what_needs_the_spool_is_refused_without_it(arguments):
    """disk=None switches the spool off: what stands on it is refused at the call."""
    assert resolve_settings(project_name="p", **arguments)
    with pytest.raises(InitError, match="disk spool"):
        resolve_settings(project_name="p", disk=None, **arguments)


def test_the_spools_place_is_argument_then_environment_then_default(monkeypatch, tmp_path):
    """A place that is given must be usable; the default is used where it can be."""
    default = resolve_settings(project_name="p").disk
    assert (default.path, default.is_required) == (None, False)
    assert resolve_settings(project_name="p", disk=None).disk is None
    monkeypatch.setenv("METRANA_DISK_SPOOL_DIR", "/from/environment")
    assert resolve_settings(project_name="p").disk.path == "/from/environment"
    assert resolve_settings(project_name="p", disk="default").disk.is_required is False
    given = resolve_settings(project_name="p", disk=tmp_path).disk
    assert (given.path, given.is_required) == (str(tmp_path), True)
    config = DiskConfig("/x", quota_bytes=5)
    assert resolve_settings(project_name="p", disk=config).disk is config
    with pytest.raises(InitError, match="quota_bytes"):
        resolve_settings(project_name="p", disk=DiskConfig("/x", quota_bytes=0))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"ingestion_url": "localhost:80"}, "ingestion_url"),
        ({"queue_capacity": 0}, "queue_capacity"),
        ({"init_timeout_secs": -1}, "init_timeout_secs"),
        ({"tags": "one"}, "tags"),
        ({"config": [1]}, "config"),
        ({"run_name": 7}, "run_name"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_malformed_arguments_are_named(arguments, text):
    """Every refusal names its argument."""
    with pytest.raises(InitError, match=text):
        resolve_settings(project_name="p", **arguments)


@pytest.mark.parametrize("dtype", ["float64", float, np.float64, np.dtype("float64")])
def test_default_dtype_spellings(dtype):
    """A dtype is understood as a name, a type or a numpy dtype."""
    assert resolve_settings(project_name="p", default_dtype=dtype).default_dtype == "float64"


def test_secrets_stay_inside():
    """Neither the repr nor what leaves the process shows the key."""
    settings = resolve_settings(project_name="p", api_key="s3cret")
    assert "s3cret" not in repr(settings)
    assert settings.without_secrets().api_key is None
