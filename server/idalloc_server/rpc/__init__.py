"""The gRPC surface: translates between the wire and the domain."""
