"""A load generator for any idalloc server, which also looks at the ids: what `idalloc bench` runs.

It needs the extra `idalloc[bench]`.
"""
