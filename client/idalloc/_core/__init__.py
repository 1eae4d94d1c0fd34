"""What both clients share; does no I/O."""
