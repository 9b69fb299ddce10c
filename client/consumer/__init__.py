"""Reads records: finds positions, fetches ahead, hands out."""
