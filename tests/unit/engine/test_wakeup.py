"""The wakeup descriptor of a program that closes every descriptor it finds, ours among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fault_row("A20")

PROGRAM = """
import os, signal, sys, threading
from metrana_async.engine import wakeup
from metrana_async.engine.loop_thread import engine

folder, notices_in = sys.argv[1:]
signal.signal(signal.SIGUSR1, lambda *_: None)
thread = engine()
wakeup.claim(thread, lambda number: None)
os.closerange(3, 4096)
own = [os.open(f"{folder}/{n}", os.O_RDWR | os.O_CREAT) for n in range(60)]

def notice():
    thread.call_soon(lambda: None)

if notices_in == "main":
    notice()
else:
    other = threading.Thread(target=notice)
    other.start()
    other.join()
assert not thread.is_alive
for _ in range(1000):
    pass  # between two bytecodes the main thread does what it is asked for
assert signal.set_wakeup_fd(-1) == -1
os.kill(os.getpid(), signal.SIGUSR1)

if notices_in == "main":
    told = threading.Event()
    wakeup.claim(engine(), lambda number: told.set())
    os.kill(os.getpid(), signal.SIGUSR1)
    assert told.wait(20)
    wakeup.give_back()
print([os.fstat(number).st_size for number in own] == [0] * 60, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("notices_in", ["main", "another thread"])
def test_no_signal_is_written_into_a_file_that_has_our_number(tmp_path: Path, notices_in) -> None:
    """Once it shows that ours are gone; and an engine that starts later hears of signals again."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), notices_in],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
