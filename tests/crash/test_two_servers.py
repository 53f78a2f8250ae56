"""Two servers never share a store: the second is refused, whatever the first is doing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metrana_async import local
from metrana_async.errors import InitError
from tests.crash.lanes import Client
from tests.crash.servers import Server
from tests.interop.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.fault_row("D11")]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_second_server_is_refused(server: Server, is_stopped: bool) -> None:
    """It says whose the store is and touches nothing, also while the first one is frozen."""
    client = Client(server)
    assert server.start()
    client.open()
    client.log()
    client.send()
    card = server.home.card
    if is_stopped:
        server.send_signal(signal.SIGSTOP)
    words = [sys.executable, "-m", "metrana_async.server", "--data-dir", str(server.data_dir)]
    second = subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert second.returncode == 1
    assert f"in use by another server (process {server.pid})" in second.stderr
    assert "Traceback" not in second.stderr
    if is_stopped:
        server.send_signal(signal.SIGCONT)
    assert server.home.card == card, "the second server took the first one's place"
    client.log()
    client.send()
    client.check()
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_starting_the_local_server_finds_the_one_there(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """`local` hands out the first one; frozen, it is named in the error and not replaced."""
    monkeypatch.setenv("METRANA_DATA_DIR", str(server.data_dir))
    assert server.start()
    url = server.home.card["url"]
    if not is_stopped:
        address = asyncio.run(local.find_or_start(str(server.data_dir), timeout_s=20))
        assert address.url == url
    else:
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(InitError) as caught:
            asyncio.run(local.find_or_start(str(server.data_dir), timeout_s=20))
        assert str(server.pid) in str(caught.value), caught.value
        server.send_signal(signal.SIGCONT)
    assert server.home.servers() == [server.pid]
    client = Client(server)
    client.open()
    client.log()
    client.send()
    client.check()
    assert server.stop() == 0
    assert not Path(f"/proc/{server.pid}").exists()
    assert os.path.exists(server.data_dir)
