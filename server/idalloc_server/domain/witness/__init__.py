"""High-water marks outside the store, by which fresh processes detect a restored store (P3)."""
