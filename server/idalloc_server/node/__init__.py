"""One process that serves: what issues ids in it, its report, and changes of its settings."""
