"""A port for MySQL's X DevAPI clients, and its notices of generated ids, which gRPC replies use."""
