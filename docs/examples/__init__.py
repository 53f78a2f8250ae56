"""Examples a reader can copy; each runs as it stands."""
