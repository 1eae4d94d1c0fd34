"""The stores of counters and witnesses, by the kind of database."""
