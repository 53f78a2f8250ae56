"""Ingestion and query server. Started by `python -m metrana_async.server`."""
