"""Worked cases against the real client and server; `python -m tests.conformance FILE`."""
