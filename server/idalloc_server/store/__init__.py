"""The stores of counters, start timestamps and recorded allocations."""
