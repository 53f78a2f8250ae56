"""A store of its own for every test here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.servers import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A store without a server; whatever runs there is ended afterwards."""
    made = Server(tmp_path / "data")
    yield made
    made.clear()
