"""What is taken where nothing is said."""

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_TIMEOUT = 5.0
