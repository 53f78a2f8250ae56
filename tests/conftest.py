"""Fixtures and settings shared by every test. Hypothesis profiles: dev, ci, soak."""

from __future__ import annotations

import os
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
