"""Replies in the shape of the MySQL X Protocol."""
