"""Counters and a witness in a CrateDB cluster, over its HTTP endpoint."""
