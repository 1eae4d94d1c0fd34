"""Allocation: ids from leases in memory, refilled from the store."""
