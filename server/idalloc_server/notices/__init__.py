"""Notices of generated ids, in the form of the X Protocol; RPCs reply with them, too."""
