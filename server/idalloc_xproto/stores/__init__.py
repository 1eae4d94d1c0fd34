"""Documents of MySQL's clients, in the stores that idalloc supports."""
