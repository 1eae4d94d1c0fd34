"""The stores: durable homes of counters, start timestamps and recorded allocations."""
