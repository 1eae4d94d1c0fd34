"""Document ids in MySQL's format, and the start timestamps that make them unique."""
