"""Integrations with other libraries. Import each module by its full name."""
