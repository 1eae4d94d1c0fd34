"""Domain logic: allocation, administration and document ids, without gRPC and SQL."""
