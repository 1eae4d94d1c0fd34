"""Watches files that the server reloads after a change, and reserves file descriptors."""
