"""Brokers: their addresses, the connections to them, and questions that every client asks."""
