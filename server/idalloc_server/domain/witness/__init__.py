"""High-water marks outside the store, which show fresh processes that the store was restored (P3)."""
