"""Spark imports modules of such names and registers their ``DefaultSource``: ``format("anabranch-segments")``."""

from anabranch.audit.datasource import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]
