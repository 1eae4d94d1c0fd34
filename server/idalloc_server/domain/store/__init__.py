"""What the domain asks of a store: the protocol, its records, and what they mean."""
