"""Batches, lanes, retry and sending."""
