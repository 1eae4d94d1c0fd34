"""Domain logic: sequences and their ids, document ids and UUIDs, without gRPC and SQL."""
