"""Settings from flags, environment and file; those that are persisted; addresses as text."""
