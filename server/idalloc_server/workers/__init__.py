"""Several worker processes: one supervisor starts, replaces, drains and sums them."""
