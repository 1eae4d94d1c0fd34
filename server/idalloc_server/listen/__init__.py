"""Listen addresses, TLS, and the gRPC transports."""
