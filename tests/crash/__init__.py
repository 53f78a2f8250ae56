"""Servers that are killed, starved and cheated of their disk; what they promised is still there."""
