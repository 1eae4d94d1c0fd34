"""Several worker processes; one supervisor starts, replaces and drains them, and sums their counts."""
