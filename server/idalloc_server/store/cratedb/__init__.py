"""A CrateDB cluster, over its HTTP endpoint."""
