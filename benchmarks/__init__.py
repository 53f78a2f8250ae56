"""Measurements; nothing here asserts. README.md says what the numbers cannot tell."""
