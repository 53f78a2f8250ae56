"""Facts about locks and forks: a child keeps nothing of its parent's, and closes nothing else."""

from __future__ import annotations

import os

import pytest

from metrana_async.spool.lock import abandon, release, try_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")


def in_child(act) -> int:
    """The exit status of a forked child that does this."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(act() or 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_that_abandons_its_copies_keeps_no_lock(tmp_path):
    """The parent gives it up, the child lives: anybody may have it."""
    path = str(tmp_path / "LOCK")
    held = try_lock(path)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        abandon()
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert try_lock(path) is None
    release(held)
    again = try_lock(path)
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    assert again is not None
    release(again)
    for end in (*ready, *go):
        os.close(end)


def test_abandoning_takes_no_lock_from_the_parent(tmp_path):
    """It is the child's copy that is closed."""
    path = str(tmp_path / "LOCK")
    held = try_lock(path)
    assert in_child(abandon) == 0
    assert try_lock(path) is None
    release(held)


def test_a_number_that_is_a_file_of_the_programs_is_not_closed(tmp_path):
    """The program closed everything before it forked, and opened files of its own."""
    held = try_lock(str(tmp_path / "LOCK"))
    os.close(held)
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    assert own == held

    def act() -> int:
        abandon()
        return os.write(own, b"x") - 1

    assert in_child(act) == 0
    release(held)
    assert os.write(own, b"y") == 1
    os.close(own)
