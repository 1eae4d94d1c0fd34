"""What all clusters share: the HTTP transport, rows, and the order of a call's steps."""
