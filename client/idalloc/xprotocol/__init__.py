"""MySQL X Protocol messages."""
