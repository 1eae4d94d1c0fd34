"""How a client reaches a server: the target, TLS, tokens and channels."""
