"""The idalloc server: unique ids over gRPC, from counters in SQLite, CrateDB or OpenSearch."""
