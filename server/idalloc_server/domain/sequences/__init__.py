"""Sequences: what they are, what may be set, and how their ids are written."""
