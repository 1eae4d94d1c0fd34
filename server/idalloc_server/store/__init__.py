"""The stores of counters, documents and witnesses, by the kind of database."""
