"""What a broker counts."""

from __future__ import annotations

from anabranch.runtime.metrics import Counter, Metrics


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
        self.held_fetches = Counter(
            "anabranch_held_fetches",
            "Fetched partitions whose next record a consumer was not given yet, for the order of keys",
            "topic",
        )
        self.holds_let_go = Counter(
            "anabranch_holds_let_go",
            "Waits for a group, or with an empty name for a coordinator, that ended by time: order may be lost",
            "topic",
            "group",
        )
        super().__init__(
            self.layout_refusals,
            self.legacy_refusals,
            self.appended_bytes,
            self.held_records_removed,
            self.held_fetches,
            self.holds_let_go,
        )
