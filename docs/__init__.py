"""Documentation, its examples and its snippets."""
