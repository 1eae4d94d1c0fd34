"""Exports and imports all sequences of a store, and shows the marks of a witness."""
