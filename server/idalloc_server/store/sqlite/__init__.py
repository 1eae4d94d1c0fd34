"""Counters and a witness in SQLite files, shared by processes on one machine."""
