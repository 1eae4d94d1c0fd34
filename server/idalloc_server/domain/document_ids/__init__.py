"""Document ids in the format of MySQL."""
