"""Proves from logs of issued ids that none came twice, and all in order: what `idalloc verify` runs.

It needs the extra `idalloc[verify]`.
"""
