"""What a broker counts."""

from __future__ import annotations

from runtime.metrics import Counter, Metrics


class BrokerMetrics(Metrics):
    """One broker's numbers."""

    def __init__(self) -> None:
        self.layout_refusals = Counter(
            "anabranch_layout_refusals",
            "Produce and Fetch partitions refused with INVALID_PARTITION_METADATA (KIP-253)",
            "api",
            "topic",
        )
        self.legacy_refusals = Counter(
            "anabranch_legacy_produce_refusals",
            "Batches refused of producers that do not name the layout they placed them by",
            "topic",
        )
        super().__init__(self.layout_refusals, self.legacy_refusals)
