"""Administration: create, read, list, update, advance and delete sequences."""
