"""What a broker counts."""

from __future__ import annotations

from runtime.metrics import Counter, Metrics


class BrokerMetrics(Metrics):
    """One broker's numbers."""

    def __init__(self) -> None:
        self.layout_refusals = Counter(
            "anabranch_layout_refusals",
            "Batches refused with INVALID_PARTITION_METADATA (KIP-253)",
            "topic",
        )
        self.legacy_refusals = Counter(
            "anabranch_legacy_produce_refusals",
            "Batches refused of producers that do not name the layout they placed them by",
            "topic",
        )
        self.appended_bytes = Counter(
            "anabranch_appended_bytes",
            "Bytes of record batches appended to partitions that this broker leads, at the request of producers",
            "topic",
        )
        self.held_records_removed = Counter(
            "anabranch_held_records_removed",
            "Records that retention removed although a group had yet to read them and another partition waits for them",
            "topic",
            "group",
        )
        super().__init__(self.layout_refusals, self.legacy_refusals, self.appended_bytes, self.held_records_removed)
