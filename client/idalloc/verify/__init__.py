"""Proves from logs of issued ids that none was issued twice, and that all are in order.

`idalloc verify` runs it. It needs the extra `idalloc[verify]`.
"""
