"""Partition logs in Kafka's files: segments, indexes, checkpoints, retention, compaction, recovery."""
