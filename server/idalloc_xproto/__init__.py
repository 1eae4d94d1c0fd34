"""The annex: a port for MySQL's X DevAPI clients, their documents, and the stores of these."""
