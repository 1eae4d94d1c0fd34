"""One serving process: its report, its changes, and what it asks of its server."""
