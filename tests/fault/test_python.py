"""Programs that are hard on the interpreter: its lock held, never a pause, strict modes, copies."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import time

import pytest

from tests.fault.conftest import Site
from tests.fault.jobs import Plan, job
from tests.fault.points import POINTS
from tests.fault.proxy import ChaosProxy
from tests.fault.test_kills import arguments
from tests.interop.conftest import ROOT

pytestmark = pytest.mark.e2e

FULL = "METRANA_TEST_FAULTS" in os.environ
ITEMS = 30


def hold_the_lock(run, progress) -> None:
    """One call into C that lets no other thread run."""
    started_s = time.monotonic()
    sum(itertools.repeat(1, 1_000_000_000 if FULL else 200_000_000))
    progress.put(noted=int(1000 * (time.monotonic() - started_s)))


@pytest.mark.fault_row("B6")
def test_the_interpreters_lock_held_for_seconds(site: Site) -> None:
    """Nothing of ours runs meanwhile; afterwards nothing is lost and nothing doubled."""
    plan = Plan(
        arguments(site, site.server.address.url), meddle=hold_the_lock, close_timeout_s=20.0
    )
    with job(plan) as one:
        one.start()
        assert one.wait(60) == 0
        assert one.progress.noted >= 500, "the call was too short"
        assert one.progress.committed == POINTS * ITEMS
    site.find().check_whole(ITEMS)


def spin(run, progress) -> None:
    """Pure Python without a pause until everything so far is stored, or for ever."""
    spins = 0
    while run.get_metrics().committed < POINTS * ITEMS // 2:
        for _ in range(100_000):
            spins += 1
        progress.put(noted=spins)


@pytest.mark.fault_row("B7")
def test_a_main_thread_that_never_pauses(site: Site) -> None:
    """What was logged before is stored while it spins: the engine gets its turns."""
    plan = Plan(
        arguments(site, site.server.address.url),
        flush_every=0,
        meddle=spin,
        close_timeout_s=20.0,
    )
    with job(plan) as one:
        one.start()
        assert one.wait(60) == 0
        assert one.progress.noted > 0
        assert one.progress.committed == POINTS * ITEMS
    site.find().check_whole(ITEMS)


def script(site: Site, url: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program with `metrana` and the arguments of `init` at hand."""
    head = f"""
import metrana_sync_shim as metrana
from tests.fault.points import log_item
GIVEN = dict(quiet=True, **{arguments(site, url)!r})
"""
    return subprocess.run(
        [sys.executable, *options, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.fault_row("B9")
@pytest.mark.parametrize("is_out", [False, True])
def test_development_mode_with_warnings_as_errors(
    site: Site, proxy: ChaosProxy, is_out: bool
) -> None:
    """No leaked resource, nothing never awaited, nothing called from the wrong thread."""
    mode = "offline" if is_out else "online"
    code = f"""
    import warnings
    from metrana_async.errors import MetranaWarning
    # Our own words to the user are warnings, too; a run that is kept on the disk says so.
    warnings.simplefilter("ignore", MetranaWarning)
    run = metrana.init(init_mode={mode!r}, **GIVEN)
    for k in range({ITEMS}):
        log_item(run, k)
    run.flush(20)
    run.close(20)
    """
    done = script(site, proxy.url, code, "-X", "dev", "-W", "error")
    assert done.returncode == 0, done.stderr
    # On a busy machine asyncio's debug mode finds everything slow.
    told = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert told == [], done.stderr
    if is_out:
        (report,) = site.replay()
        assert report.state == "delivered", report
    site.find().check_whole(ITEMS)
    site.check_empty()


@pytest.mark.fault_row("B11")
def test_the_package_there_twice(site: Site) -> None:
    """Reloaded in mid-run: two engines, two writers, and both store what they were given."""
    code = f"""
    import sys
    first = metrana.init(**GIVEN)
    for k in range({ITEMS}):
        log_item(first, k)
    for name in [n for n in sys.modules if n.startswith(("metrana_async", "metrana_sync_shim"))]:
        del sys.modules[name]
    import metrana_sync_shim as again
    assert again is not metrana
    second = again.init(resume_strategy="allow", **GIVEN)
    for step in range({ITEMS}):
        second.log_distributed("late", float(step), step=step)
    assert second.close(20).is_complete
    assert first.close(20).is_complete
    """
    done = script(site, site.server.address.url, code)
    assert done.returncode == 0, done.stderr
    site.find().check_whole(ITEMS)
    with site.reader() as reader:
        late = reader.merged("run", "late")
        assert late.step.tolist() == list(range(ITEMS))
        assert len(reader.run("run").writers) == 2


@pytest.mark.fault_row("B10")
def test_a_sub_interpreter_does_no_harm(site: Site) -> None:
    """It cannot import what we stand on, or it can; the main interpreter logs and stores."""
    code = f"""
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        try:
            import _interpreters as interpreters
        except ImportError:
            print("none here")
            raise SystemExit
    other = interpreters.create()
    try:
        problem = interpreters.run_string(other, "import metrana_sync_shim")
    except Exception as error:
        problem = error
    print("problem" if problem is not None else "works", problem)
    run = metrana.init(**GIVEN)
    for k in range({ITEMS}):
        log_item(run, k)
    assert run.close(20).is_complete
    """
    done = script(site, site.server.address.url, code)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("none here"):
        pytest.skip("this CPython has no sub-interpreters to be tried")
    print(done.stdout)
    assert done.stdout.startswith("works") or "ImportError" in done.stdout
    site.find().check_whole(ITEMS)
