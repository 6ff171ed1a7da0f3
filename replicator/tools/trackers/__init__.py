"""Trackers, which send everything a run logs to a service as soon as it is logged."""
