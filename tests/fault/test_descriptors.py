"""A program that closes every descriptor, ours among them, and goes on."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

import pytest

from metrana_async.errors import MetranaError
from tests.fault.conftest import Site
from tests.fault.jobs import Plan, job
from tests.fault.proxy import ChaosProxy
from tests.fault.test_kills import arguments

pytestmark = pytest.mark.e2e

ITEMS = 30


def close_everything(folder: Path, run, progress) -> None:
    """As daemons do; the numbers are taken by files of the program's own at once."""
    os.closerange(3, 4096)
    folder.mkdir()
    taken = [os.open(folder / str(n), os.O_RDWR | os.O_CREAT) for n in range(60)]
    for k in range(1000, 1030):
        with contextlib.suppress(MetranaError):
            run.log("later", float(k), step=k)
    with contextlib.suppress(MetranaError):
        run.flush(2.0)
    try:
        run.log("later", 1.0, step=2000)
    except MetranaError as error:
        progress.put(noted="file descriptors" in str(error))
    for n, handle in enumerate(taken):
        assert os.fstat(handle).st_size == 0, n
    os._exit(0)


@pytest.mark.fault_row("A20")
@pytest.mark.parametrize("is_out", [False, True])
def test_a_program_that_closes_every_descriptor(
    site: Site, proxy: ChaosProxy, tmp_path: Path, is_out: bool
) -> None:
    """Nothing is written to the program's files, no call hangs, and the next one says why."""
    if is_out:
        proxy.refuse()
    plan = Plan(
        arguments(site, proxy.url, init_mode="auto"),
        meddle=functools.partial(close_everything, tmp_path / "own"),
        flush_every=15,
    )
    with job(plan) as one:
        one.start()
        code = one.wait(30)
        progress = one.progress
        assert (code, progress.kept) == (0, 15)
        assert progress.noted == 1, "the next call was taken in silence"
    proxy.listen()
    site.replay()
    site.find().check_prefix(15, 15)
    assert all(path.stat().st_size == 0 for path in (tmp_path / "own").iterdir())
