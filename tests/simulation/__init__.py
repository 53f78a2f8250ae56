"""Deterministic simulation: the real client and the real server on a virtual clock."""
