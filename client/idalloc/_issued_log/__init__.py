"""The log of issued ids: its format and its writer."""
