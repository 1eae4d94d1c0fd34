"""Writes the pages of docs/reference/ from the protos and the code: ``make docs-reference``.

A test compares the pages in git with what this package writes, so they cannot differ from the code.
The others are built with the site only.
"""
