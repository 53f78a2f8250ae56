"""What the dashboard's upkeep needs; nothing here is shipped."""
