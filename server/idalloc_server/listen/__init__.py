"""Addresses, TLS and the transports that serve on them."""
