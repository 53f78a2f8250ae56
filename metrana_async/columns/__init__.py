"""From what the caller passed to validated, owned columns. Pure."""
