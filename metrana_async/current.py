"""To be filled; see docs/explanation/architecture.md."""
