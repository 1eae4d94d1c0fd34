"""Sequences: settings and their validation, id formats, check digits and the calendar of resets."""
