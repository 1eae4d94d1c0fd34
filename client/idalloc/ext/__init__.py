"""Ids in other libraries' own terms. Each module here is imported by its full name only."""
