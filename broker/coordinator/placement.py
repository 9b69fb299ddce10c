"""Computes the offsets topic's partition that holds a group: Java's ``Utils.abs(groupId.hashCode) % partitions``."""

from __future__ import annotations


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``, a signed 32-bit integer computed over UTF-16 code units, not code points."""
    hash_code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        hash_code = (31 * hash_code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return hash_code - (1 << 32) if hash_code >= 1 << 31 else hash_code


def kafka_abs(number: int) -> int:
    """``Utils.abs`` of Kafka: the absolute value, and 0 for the smallest 32-bit integer (its own negation in Java)."""
    return 0 if number == -(1 << 31) else abs(number)


def partition_for(group_id: str, partition_count: int) -> int:
    """The number of the partition that holds ``group_id``, out of ``partition_count`` partitions."""
    return kafka_abs(java_string_hash(group_id)) % partition_count
