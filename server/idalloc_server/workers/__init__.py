"""Several worker processes: a supervisor starts, replaces and drains them, and sums their counts.

The processes send each other the messages of ``messages.py``.
"""
