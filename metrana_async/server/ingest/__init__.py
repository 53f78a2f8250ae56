"""Ingestion: pure rules, cursors, and the service around them."""
