"""Spark data source over segment files and the checks that run on it."""
