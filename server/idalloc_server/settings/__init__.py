"""Settings from flags, environment and files, and what the commands share to use them."""
