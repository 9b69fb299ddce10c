"""A broker as operators see it: its metrics and its health."""
