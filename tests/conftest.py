"""Fixtures and settings shared by every test. Hypothesis profiles: dev, ci, soak."""

from __future__ import annotations

import os
import signal
import tempfile

from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=60, deadline=None, print_blob=True)
settings.register_profile(
    "ci",
    max_examples=150,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# What tests leave (spools, stores of default places) goes where nobody's own runs are.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="metrana-tests-")

# A suite that was started in the background inherits an ignored Ctrl-C, and its programs with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
