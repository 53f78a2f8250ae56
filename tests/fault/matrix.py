"""The fault matrix: every row, the tests that stand for it, and why some rows have none.

``python -m tests.fault.matrix`` writes the table of docs/reference/fault-matrix.md anew;
tests/meta holds it to what the tests carry (marker ``fault_row``). As a pytest plugin it prints
the rows of the collected tests instead of running them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "fault-matrix.md"
BEGIN, END = "<!-- the table, as tests/fault/matrix.py writes it -->", "<!-- end of the table -->"
_PREFIX = "fault-row "

PARTS = {
    "A": "The client's process",
    "B": "Python",
    "C": "The network",
    "D": "The server",
    "E": "The client's disk",
    "F": "Clocks",
    "G": "Many processes, and restarts",
    "H": "Bytes that nobody of ours sends",
}

ROWS = {
    "A1": "killed (SIGKILL) at any time",
    "A2": "killed at the nth file call of the spool",
    "A3": "a segmentation fault in another extension",
    "A4": "killed by the kernel for its memory",
    "A5": "`os._exit` right behind `log()`",
    "A6": "SIGTERM while the main thread runs Python",
    "A7": "SIGTERM while the main thread is in a long C call",
    "A8": "SIGTERM, and SIGKILL a second later",
    "A9": "SIGTERM twice; a handler of the program's own; SIGTERM ignored",
    "A10": "end by an exception, `sys.exit` or the end of the script, server up",
    "A11": "the same, server down",
    "A12": "the end before a server was ever reached",
    "A13": "stopped (SIGSTOP) in the middle of a request, and continued",
    "A14": "frozen by a cgroup, and thawed",
    "A15": "no file descriptors left",
    "A16": "no thread can be started",
    "A17": "an allocation fails inside a call",
    "A18": "`log()` from many threads, finalizers, signal handlers, collector callbacks",
    "A19": "`log()` before the start, after and during close, during the interpreter's end",
    "A20": "the program closes every descriptor, ours among them",
    "B1": "fork under load, and the child logs",
    "B2": "fork, and the child ends in order",
    "B3": "fork while another thread is inside a call",
    "B4": "multiprocessing by fork, spawn and forkserver",
    "B5": "the parent is killed, a forked child lives on",
    "B6": "the interpreter's lock is held for seconds",
    "B7": "a main thread that never pauses",
    "B8": "event loops of the program's own, of every kind",
    "B9": "development mode with warnings as errors",
    "B10": "sub-interpreters",
    "B11": "the package reloaded, or there twice",
    "B12": "a handle unpickled in another process",
    "B13": "free-threaded CPython",
    "C1": "connections refused for a while",
    "C2": "connecting never comes to an end",
    "C3": "established connections swallow everything",
    "C4": "requests arrive, answers never",
    "C5": "random loss",
    "C6": "reset in the middle of a request or an answer",
    "C7": "a kept-alive connection is closed as the request is sent",
    "C8": "cut after the request arrived, before the answer",
    "C9": "the answer is cut, of the wrong length, garbage, or a portal's page",
    "C10": "the answer is that of another request",
    "C11": "a request is delivered again, now or much later",
    "C12": "two copies of a request race",
    "C13": "latency and jitter",
    "C14": "a narrow line",
    "C15": "the answer comes byte by byte",
    "C16": "names that do not resolve, resolve late or anew",
    "C17": "large packets vanish",
    "C18": "the interface goes down and up, the address changes",
    "C19": "certificates that are not to be trusted",
    "C20": "up and down, again and again",
    "C21": "HTTP proxies: in the environment, refusing, rewriting",
    "C22": "everybody comes back at once",
    "C23": "requests stuck in the network are let go in any order",
    "D1": "the server is killed before, in and after a commit",
    "D2": "the store loses power",
    "D3": "the store's disk is full",
    "D4": "the store's disk fails to sync",
    "D5": "the store is slow",
    "D6": "refusals: 500, 502, 503, 429, with and without a time to come back",
    "D7": "one batch that can never be stored",
    "D8": "the key is refused for a while",
    "D9": "the store goes back to an older backup",
    "D10": "old and new releases side by side",
    "D11": "two servers on one store",
    "D12": "very many writers",
    "D13": "the server's clock jumps",
    "D14": "the server crashes every few seconds",
    "D15": "bits of the store flip",
    "E1": "no space: at the start, in the middle of a frame, at a sync, a directory, a rename",
    "E2": "no inodes",
    "E3": "quota of the file system; files that may not grow",
    "E4": "a sync fails, once or for ever",
    "E5": "writes and reads fail",
    "E6": "a sync takes very long",
    "E7": "the disk hangs for ever",
    "E8": "power is lost at any point",
    "E9": "every state that a crash may leave of small workloads",
    "E10": "bits flipped, pages zeroed, segments cut, extended, swapped, removed",
    "E11": "frames of another writer in a segment",
    "E12": "the beginning of a segment destroyed",
    "E13": "META, LOCK, END or the names missing or garbage",
    "E14": "foreign files, directories, links, FIFOs and devices in the spool",
    "E15": "the spool directory turns read-only, is removed or replaced",
    "E16": "masses of tiny segments, one giant sparse one",
    "E17": "the spool's own quota is used up",
    "E18": "what other releases left",
    "E19": "any umask; a directory of another user",
    "E20": "each error at each file call of the spool",
    "E21": "other file systems",
    "E22": "a ring in shared memory vanishes",
    "F1": "the wall clock is days or decades off",
    "F2": "the wall clock goes to and fro",
    "F3": "the wall clock is too fast or too slow",
    "F4": "another time zone",
    "F5": "the machine sleeps",
    "F6": "two hosts of one run disagree by an hour",
    "G1": "many processes on one spool",
    "G2": "two who want the same leftovers",
    "G3": "whoever delivers leftovers is killed halfway",
    "G4": "the owner lives, its lock is gone",
    "G5": "Ray kills, restarts and forgets actors",
    "G6": "a stopped writer comes back beside its successor",
    "G7": "restarts from a checkpoint repeat steps",
    "G8": "a later attempt of an episode arrives first",
    "G9": "batches of several writers arrive in any order",
    "G10": "a cloned machine, or disk, goes on twice",
    "G11": "two writers under one identity",
    "G12": "the run was deleted while points lay on a disk",
    "G13": "offline writers arrive in the wrong order",
    "H1": "random and mutated frames",
    "H2": "sequences of 0, too large, with holes",
    "H3": "lengths that lie, compression bombs",
    "H4": "names and batches beyond the limits",
    "H5": "somebody else's run or writer",
    "H6": "a recorded request a year later",
    "H7": "HTTP that is smuggled, oversized or slow",
}

NOT_RUN = {
    "B13": "no free-threaded CPython installs here; the code takes no lock for granted to be the "
    "interpreter's",
    "C17": "needs a rule in the kernel that drops one kind of packet (nftables), which test "
    "machines lack; to the client it is C3, a request without an answer",
    "F5": "no test machine is put to sleep; to a process it is A13 and A14; ages are taken from "
    "a clock that nobody sets",
    "E22": "there is no such ring: what is not spooled yet is in the process's memory",
}
"""Rows without a test that will stay so, and why."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Print what every collected test stands for."""
    if os.environ.get("METRANA_PRINT_ROWS"):
        for item in items:
            for mark in item.iter_markers("fault_row"):
                for row in mark.args:
                    print(f"{_PREFIX}{row} {item.nodeid.partition('[')[0]}")


def collect(*, everything: bool) -> dict[str, set[str]]:
    """Tests by row, as pytest collects them.

    Args:
        everything: whether also those that only `make test-faults` and `make test-launchers` run.
    """
    variables = {**os.environ, "METRANA_PRINT_ROWS": "1"}
    for name in ("METRANA_TEST_FAULTS", "METRANA_TEST_LAUNCHERS"):
        variables.pop(name, None)
        if everything:
            variables[name] = "1"
    tests = ROOT / "tests"
    marked = sorted(
        str(path.relative_to(ROOT))
        for path in tests.rglob("test_*.py")
        if "fault_row(" in path.read_text("utf-8") and "meta" not in path.parts
    )
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "tests.fault.matrix"]
    done = subprocess.run(
        [*words, "-p", "no:randomly", "-p", "no:cacheprovider", *marked],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, set[str]] = defaultdict(set)
    for line in done.stdout.splitlines():
        if line.startswith(_PREFIX):
            _, row, test = line.split(" ", 2)
            found[row].add(test.removeprefix("tests/"))
    return dict(found)


def table() -> str:
    """The table in Markdown."""
    usual, everything = collect(everything=False), collect(everything=True)
    unknown = set(everything) - set(ROWS)
    assert not unknown, f"tests carry rows that do not exist: {unknown}"
    lines = []
    for part, title in PARTS.items():
        lines += [f"## {part}: {title}", "", "| row | fault | shown by | run by |"]
        lines += ["| --- | --- | --- | --- |"]
        for row, fault in ROWS.items():
            if row[0] != part:
                continue
            names = sorted(everything.get(row, ()))
            if names:
                by = _run_by(row, usual, names)
                shown = "<br>".join(f"`{name}`" for name in names)
            else:
                by, shown = "nothing", NOT_RUN.get(row, "not shown yet")
            lines.append(f"| {row} | {fault} | {shown} | {by} |")
        lines.append("")
    run = sum(1 for row in ROWS if row in usual)
    more = sum(1 for row in ROWS if row in everything and row not in usual)
    head = f"{run} of {len(ROWS)} rows run in `make test`, {more} more by other targets."
    return "\n".join([head, "", *lines]).rstrip()


def _run_by(row: str, usual: dict[str, set[str]], names: list[str]) -> str:
    if all(name.startswith("launchers/") for name in names):
        return "`make test-launchers`"
    return "`make test`" if row in usual else "`make test-faults`"


def page_with(table_text: str) -> str:
    """The page with this table in its place."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table_text}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()), "utf-8")
