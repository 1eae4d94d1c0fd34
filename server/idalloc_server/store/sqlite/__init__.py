"""The store in a SQLite file, shared by processes on one machine."""
