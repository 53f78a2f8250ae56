"""The numbers of the style page: modules, functions, classes, parameters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = sorted(
    path
    for package in ("metrana_async", "metrana_sync_shim")
    for path in (ROOT / package).rglob("*.py")
)
MODULE_LINES, FUNCTION_LINES, CLASS_LINES, POSITIONAL = 600, 70, 350, 5
# Signatures that the specification or the array protocols prescribe.
GIVEN_SIGNATURES = {
    "log_rl_episode",
    "log_rl_environment_step",
    "metrana",
    "grid_columns",
    "episode_columns",
}


def code_lines(node: ast.AST) -> int:
    """Lines of a definition's bodies: what a reader follows, without signatures and docstrings."""
    total = 0
    for child in node.body:
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and isinstance(
            node, ast.ClassDef
        ):
            total += code_lines(child) + 2
        elif not is_text:
            total += (child.end_lineno or 0) - child.lineno + 1
    return total


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_a_module_is_one_room(path):
    """No module, function or class is longer than a reader can hold; no unfinished marks."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    problems = []
    if len(text.splitlines()) > MODULE_LINES:
        problems.append(f"{len(text.splitlines())} lines")
    if ast.get_docstring(tree) is None:
        problems.append("no module docstring")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = code_lines(node)
            if length > FUNCTION_LINES:
                problems.append(f"{node.name} has {length} lines")
            names = [
                a.arg
                for a in (*node.args.posonlyargs, *node.args.args)
                if a.arg not in ("self", "cls")
            ]
            if (
                len(names) > POSITIONAL
                and node.name not in GIVEN_SIGNATURES
                and not node.name.startswith("__")
            ):
                problems.append(f"{node.name} has {len(names)} positional parameters")
        elif isinstance(node, ast.ClassDef):
            length = code_lines(node)
            if length > CLASS_LINES:
                problems.append(f"class {node.name} has {length} lines")
    marks = ("TODO", "FIXME", "XXX", "NotImplementedError")
    problems += [f"holds {mark}" for mark in marks if mark in text]
    assert not problems


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_only_the_rooms_that_may_read_the_environment_start_threads_or_print(path):
    """os.environ, threads and print stay where the architecture puts them."""
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text("utf-8"))
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    reads = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if name not in {
        "metrana_async/settings.py",
        "metrana_async/orchestration.py",
        "metrana_async/locations.py",
        "metrana_async/local.py",
    }:
        assert "os.environ" not in reads
        assert not {"os.getenv", "os.environ.get"} & calls
    may_thread = name.startswith(
        ("metrana_async/engine/", "metrana_sync_shim/", "metrana_async/query/")
    )
    if not may_thread and name != "metrana_async/server/ingest/worker.py":
        assert "threading.Thread" not in calls
    assert "print" not in calls or name.startswith("metrana_async/cli/")
    assert "asyncio.create_task" not in calls or name.startswith("metrana_async/engine/")
