"""Real launchers, in an environment of their own: `make test-launchers`."""
