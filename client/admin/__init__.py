"""Asks about the cluster and changes it."""
