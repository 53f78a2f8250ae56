"""The blocking twin of metrana_async: the same public names, one place that waits."""
