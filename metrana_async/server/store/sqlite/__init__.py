"""The embedded store: SQLite, a log in front and compressed tiles behind."""
