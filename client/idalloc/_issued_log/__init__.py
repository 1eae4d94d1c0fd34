"""The log of issued ids: format and writer."""
