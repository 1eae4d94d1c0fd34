"""Backup: export and import of all sequences of a store."""
