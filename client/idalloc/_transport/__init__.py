"""The connection to a server: target, credentials, tokens and channels."""
