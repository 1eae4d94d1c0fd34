"""One SQLite file, for the processes of one machine."""
