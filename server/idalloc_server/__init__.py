"""The idalloc server: unique ids over gRPC, from counters in CrateDB or SQLite."""
