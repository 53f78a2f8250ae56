"""Whole ways: caller to store."""
