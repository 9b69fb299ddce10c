"""Splits and merges partitions in order (KIP-253): decides requests, carries out resizes, removes partitions."""
