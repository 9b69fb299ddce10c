"""Clusters for tests: local processes and containers."""
