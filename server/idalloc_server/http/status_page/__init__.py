"""The status page: its files, and the documents that it reads."""
