"""Every worked case as a test: against a real server on SQLite, late, and in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.cases import STANDARD_FILE, read_cases
from tests.conformance.runner import Runner

CASES = list(read_cases(STANDARD_FILE))
KILLED = [case for case in CASES if case.killed()]


@pytest.fixture(scope="module")
def sqlite_runner() -> Iterator[Runner]:
    """A real server process on SQLite; letters are processes."""
    with Runner(store="sqlite") as runner:
        yield runner


@pytest.fixture(scope="module")
def late_runner() -> Iterator[Runner]:
    """The same, delivering a killed process's last batches after its successor's."""
    with Runner(store="sqlite", late=True) as runner:
        yield runner


@pytest.fixture(scope="module")
def memory_runner() -> Iterator[Runner]:
    """Server and letters in this process, on the memory store."""
    with Runner(store="memory") as runner:
        yield runner


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_on_sqlite(case, arrays, sqlite_runner):
    """The case comes out as written, through processes, sockets and disk."""
    sqlite_runner.run(case, arrays=arrays)


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_in_memory(case, arrays, memory_runner):
    """The case comes out as written, in this process on the memory store."""
    memory_runner.run(case, arrays=arrays)


@pytest.mark.parametrize("case", KILLED, ids=lambda case: case.id)
def test_case_with_late_batches(case, late_runner):
    """What a killed process left arrives after its successor's and changes no visible value."""
    late_runner.run(case)


def test_the_file_holds_every_case():
    """No case was lost on the way into this repository."""
    assert len(CASES) == len({case.id for case in CASES}) == 92
