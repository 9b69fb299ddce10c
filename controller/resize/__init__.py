"""Splitting and merging partitions in order (KIP-253): what is to be done, what is refused, how it is done."""
