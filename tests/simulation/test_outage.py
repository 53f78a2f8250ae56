"""An hour without a server: bounded memory, order kept, everything delivered."""

from __future__ import annotations

import pytest

from tests.simulation.outage import run_outage


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_hour_without_a_server_is_delivered_in_order():
    """3.6 million points are spooled in 64 MiB of memory and delivered without a gap."""
    outcome = run_outage(1.0)
    assert not outcome.findings
    assert outcome.stored_count == outcome.points_count > 3_600_000
    assert outcome.spool_mib > 8
