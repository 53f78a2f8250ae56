"""Every worked case as a test: against a real server on SQLite, late, and in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.cases import MORE_FILE, STANDARD_FILE, read_cases
from tests.conformance.runner import Runner

CASES = list(read_cases(STANDARD_FILE))
MORE = list(read_cases(MORE_FILE))
# What they show needs processes that are live at the same time for the server: a pin or a run that
# another one has, what another one has logged, an episode that is taken over while it is written.
LIVE = frozenset(
    "mrg-06 run-01 run-05 run-06 q-08 m-s3-06 m-s3-14 m-s4-08 m-s52-13 m-s52-15 m-s5x-09 m-s5x-10 "
    "m-s5x-17 m-p-01 m-p-02 m-p-03 m-p-04 m-p-05 m-t-01 m-t-02 m-r-05 m-r-08 m-r-09 m-r-15 m-r-16 "
    "m-r-19".split()
)
OFFLINE = [case for case in [*CASES, *MORE] if case.id not in LIVE]
KILLED = [case for case in [*CASES, *MORE] if case.killed()]


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
def offline_runner() -> Iterator[Runner]:
    """Letters without a server; what they left on the disk is delivered when all have ended."""
    with Runner(store="sqlite", offline=True) as runner:
        yield runner


@pytest.fixture(scope="module")
def memory_runners() -> Iterator[tuple[Runner, Runner]]:
    """The memory store: letters in this process, and letters as processes that can be killed."""
    with Runner(store="in-process") as inside, Runner(store="memory") as outside:
        yield inside, outside


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_on_sqlite(case, arrays, sqlite_runner):
    """The case comes out as written, through processes, sockets and disk."""
    sqlite_runner.run(case, arrays=arrays)


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_in_memory(case, arrays, memory_runners):
    """The case comes out as written on the memory store, in this process where nobody is killed."""
    inside, outside = memory_runners
    (outside if case.killed() else inside).run(case, arrays=arrays)


@pytest.mark.parametrize("case", MORE, ids=lambda case: case.id)
def test_further_case_on_sqlite(case, sqlite_runner):
    """The further cases, given as lists."""
    sqlite_runner.run(case)


@pytest.mark.parametrize("case", MORE, ids=lambda case: case.id)
def test_further_case_in_memory(case, memory_runners):
    """The further cases, given as arrays."""
    inside, outside = memory_runners
    (outside if case.killed() else inside).run(case, arrays=True)


@pytest.mark.parametrize("case", KILLED, ids=lambda case: case.id)
def test_case_with_late_batches(case, late_runner):
    """What a killed process left arrives after its successor's and changes no visible value."""
    before = late_runner.late_requests
    late_runner.run(case)
    assert late_runner.late_requests > before, "nothing was late: the case shows nothing"


@pytest.mark.parametrize("case", OFFLINE, ids=lambda case: case.id)
def test_case_offline(case, offline_runner):
    """The case comes out as written when every process was offline and is synced afterwards."""
    offline_runner.run(case, arrays=case in MORE)


def test_the_files_hold_every_case():
    """No case was lost on the way into this repository."""
    assert len(CASES) == len({case.id for case in CASES}) == 92
    assert len(MORE) == len({case.id for case in MORE}) == 184
