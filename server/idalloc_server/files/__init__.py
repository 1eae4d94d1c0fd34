"""Files that the server reads again after a change."""
