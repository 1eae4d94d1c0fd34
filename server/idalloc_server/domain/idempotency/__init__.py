"""Idempotency: a repeated request_id gets the same ids."""
