"""Cold imports: each module alone, the whole package without what it does not need."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("metrana_async", "metrana_sync_shim")
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__main__.py"
)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_module_imports_in_any_order():
    """No module depends on another having been imported before it."""
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for known in [m for m in sys.modules if m.startswith('metrana_')]:\n"
        "        del sys.modules[known]\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *MODULES], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["metrana_async", "metrana_sync_shim"])
def test_importing_the_client_brings_no_server_and_no_learning_library(name):
    """The client imports neither the server nor torch, jax, pandas, gymnasium, trio or uvloop."""
    program = f"import sys, {name}; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    loaded = {line.split(".")[0] for line in done.stdout.split()}
    assert not loaded & {
        "torch",
        "jax",
        "tensorflow",
        "pandas",
        "gymnasium",
        "trio",
        "uvloop",
        "sqlite3",
    }
    assert "metrana_async.server" not in done.stdout
    assert "metrana_async.query" not in done.stdout


@pytest.mark.parametrize("name", ["metrana_async", "metrana_sync_shim"])
def test_names_of_reading_come_when_they_are_asked_for(name):
    """What a program that only logs never asks for is there all the same."""
    package, query = importlib.import_module(name), importlib.import_module("metrana_async.query")
    for slice_ in ("Latest", "RLStep", "Episode"):
        assert getattr(package, slice_) is getattr(query, slice_)
    assert package.QueryClient.__module__.startswith("metrana_async.query")
    for public in package.__all__:
        assert getattr(package, public) is not None
