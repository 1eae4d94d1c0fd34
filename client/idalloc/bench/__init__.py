"""A load generator for any idalloc server, which can also verify the ids. `idalloc bench` runs it.

It needs the extra `idalloc[bench]`.
"""
