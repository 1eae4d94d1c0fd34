"""Administration: create, get, list, update, advance and delete sequences."""
