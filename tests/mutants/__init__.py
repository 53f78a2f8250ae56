"""Seeded bugs: each must be caught by the tests that are there for it.

``python -m tests.mutants`` copies the packages aside, breaks one place at a time and runs the
named tests against the copy; it prints one line for each mutant and fails when one survives.
"""
