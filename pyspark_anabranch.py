"""Spark imports the modules of this name's form and registers their ``DefaultSource``: ``format("anabranch")``."""

from anabranch.spark.source import LogDataSource as DefaultSource

__all__ = ["DefaultSource"]
