"""Documents with unique keys: their text, the criteria that select them, and the changes to them, as in MySQL."""
