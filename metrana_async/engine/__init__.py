"""The loop thread: inbox, supervisor, clock, life cycle."""
