"""Where counters and start timestamps are kept."""
