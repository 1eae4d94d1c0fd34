"""Backup: exports and imports all sequences of a store."""
