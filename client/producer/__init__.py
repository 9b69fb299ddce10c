"""Sends records."""
