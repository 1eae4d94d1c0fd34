"""What the stores of clusters share: the way to a host, rows, and the order of a call's steps."""
