"""Async-first logging of reinforcement-learning and machine-learning metrics."""
