"""Replies in the format of the MySQL X Protocol."""
