"""Idempotency: a retry with the same request_id gets the same ids."""
