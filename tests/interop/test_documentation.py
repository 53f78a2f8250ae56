"""The documentation is true: its snippets run, its names exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metrana_async
from metrana_async import errors
from metrana_async.wire import limits

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SNIPPETS = sorted((DOCS / "snippets").glob("*.py"))
PAGES = sorted(DOCS.rglob("*.md")) + [ROOT / "README.md"]
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
MARK = re.compile(r"<!-- snippet: (\S+) -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda p: p.name)
def test_a_snippet_runs(path, server, tmp_path):
    """The snippet runs as it stands, in an empty directory, without a word on stderr but ours."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("METRANA", "SLURM", "RAY"))
    }
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=tmp_path,
        env={**environment, "METRANA_DATA_DIR": str(server.data_dir), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("metrana: ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_on_a_page_is_the_snippet_that_runs(page):
    """A marked code block equals its file; relative links lead to files that exist."""
    text = page.read_text("utf-8")
    for name, code in MARK.findall(text):
        assert code == (DOCS / "snippets" / name).read_text("utf-8"), name
    for name, code in EXAMPLE.findall(text):  # run by `make test-launchers`
        assert code == (DOCS / "examples" / name).read_text("utf-8"), name
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_every_snippet_is_on_a_page():
    """No snippet is forgotten."""
    used = {name for page in PAGES for name, _ in MARK.findall(page.read_text("utf-8"))}
    assert used == {path.name for path in SNIPPETS}


def reference(name: str) -> str:
    return (DOCS / "reference" / name).read_text("utf-8")


def test_every_public_name_is_in_the_reference():
    """What `metrana_async` exports is described."""
    text = reference("api.md") + reference("errors.md")
    missing = [name for name in metrana_async.__all__ if f"`{name}" not in text]
    assert not missing


def test_every_error_warning_and_limit_is_in_the_reference():
    """Each error class, warning class and limit has a row."""
    text = reference("errors.md")
    classes = [*errors.ERROR_BY_CODE.values(), *errors.WARNING_BY_KIND.values()]
    assert not [cls.__name__ for cls in classes if f"`{cls.__name__}`" not in text]
    bounds = [name for name in vars(limits) if name.isupper()]
    assert not [name for name in bounds if f"`{name}`" not in reference("limits.md")]


def test_every_setting_is_in_the_reference():
    """Each argument of init and each environment variable is described."""
    from metrana_async.settings import _ENVIRONMENT, Settings

    text = reference("settings.md")
    assert not [name for name in Settings.__dataclass_fields__ if f"`{name}`" not in text]
    assert not [name for name in _ENVIRONMENT.values() if f"`{name}`" not in text]


def test_every_route_is_in_the_reference():
    """Each endpoint of a server is described."""
    from metrana_async.testing import MemoryServer

    text = reference("http-api.md")
    assert not [path for path in MemoryServer().backend.endpoints if f"`{path}`" not in text]
