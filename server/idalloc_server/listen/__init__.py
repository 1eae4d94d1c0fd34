"""Listen addresses, connections, TLS and transports, and the access control of callers."""
