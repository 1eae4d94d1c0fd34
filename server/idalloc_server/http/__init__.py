"""The HTTP port: probes, metrics and the status page, for people and monitoring.

It serves no ids.
"""
