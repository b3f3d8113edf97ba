"""What an engine's metrics page says: its text in, the same facts under one name for every engine out. Pure."""
