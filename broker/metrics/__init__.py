"""The numbers that a broker counts."""
