"""Writes the pages of docs/reference/ from the protos and the code: ``make docs-reference``.

A test compares each page with what this package writes, so a page cannot differ from the code.
"""
