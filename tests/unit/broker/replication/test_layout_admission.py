"""Whether a producer may write a batch: the producer's layout is compared with the partition's layout (KIP-253)."""

from __future__ import annotations

import pytest

from anabranch.broker.replication import layout_admission
from anabranch.broker.replication.layout_admission import (
    UNKNOWN,
    DeliveryRules,
    LayoutRefusedError,
    StockProducerRule,
    produce_admission,
)
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout

RULES = DeliveryRules()
OFF = DeliveryRules(ordered=False)
NEVER_RESIZED = Layout(4, 0, 4)
GROWN = Layout(6, 1, 4)
SHRUNK = Layout(4, 2, 4)


def keyed(*keys: bytes | None, compression: CompressionType = CompressionType.NONE) -> RecordBatch:
    records = [(key, b"v", (), 1_000) for key in keys]
    return RecordBatch(build_batch(records, compression=compression))


def key_of(partition: int, layout: Layout = GROWN) -> bytes:
    """Return a key that belongs in ``partition``."""
    for number in range(1_000):
        key = b"k%d" % number
        if place(positive_hash(key), layout.initial_partition_count, layout.undeleted_partition_count) == partition:
            return key
    raise AssertionError(partition)


def refusal(
    partition: int,
    layout: Layout,
    client: StoredLayout | None,
    rules: DeliveryRules = RULES,
    batch: RecordBatch | None = None,
) -> ErrorCode:
    """Return the error code that a batch is refused with, or NONE when it is accepted."""
    admission = produce_admission(TopicPartition("t", partition), layout, rules, client)
    if admission is not None:
        try:
            admission(batch or keyed(None))
        except LayoutRefusedError as error:
            return error.code
    return ErrorCode.NONE


# ---------------------------------------------------------------- producers that name their layout


@pytest.mark.parametrize(
    ("layout", "client"),
    [
        (NEVER_RESIZED, StoredLayout(4, 0)),
        (GROWN, StoredLayout(6, 1)),
        (UNKNOWN, StoredLayout(4, 0)),  # the controller did not send a layout, so there is nothing to compare with
    ],
)
def test_batches_with_the_partitions_layout_are_not_verified(layout: Layout, client: StoredLayout | None) -> None:
    assert produce_admission(TopicPartition("t", 1), layout, RULES, client) is None


@pytest.mark.parametrize(
    "client",
    [
        StoredLayout(4, 0),
        StoredLayout(6, 0),
        StoredLayout(4, 1),
        StoredLayout(9, 2),  # the client has a newer layout than the broker
    ],
)
def test_a_producer_with_another_layout_is_refused(client: StoredLayout | None) -> None:
    assert refusal(1, GROWN, client) is ErrorCode.INVALID_PARTITION_METADATA


def test_hole_10_a_count_that_came_back_is_another_layout() -> None:
    """4 -> 6 -> 4: a delayed request of the first layout must not be appended after newer records."""
    assert refusal(1, SHRUNK, StoredLayout(4, 0)) is ErrorCode.INVALID_PARTITION_METADATA
    assert refusal(1, SHRUNK, StoredLayout(4, 2)) is ErrorCode.NONE


def test_a_sealed_partition_takes_nothing() -> None:
    """Hole 6: marked partitions are sealed first, and refuse every batch, whatever layout the client has."""
    for client in (StoredLayout(4, 2), StoredLayout(6, 1), StoredLayout(4, 0)):
        assert refusal(5, SHRUNK, client) is ErrorCode.INVALID_PARTITION_METADATA
    assert refusal(5, SHRUNK, None) is ErrorCode.POLICY_VIOLATION


def test_hole_4_a_survivor_keeps_its_old_layout_while_a_marked_partition_is_sealed() -> None:
    """While 6 -> 4 runs, partition 5 has the new layout and partition 1 the old layout. Each uses its own."""
    assert refusal(1, GROWN, StoredLayout(6, 1)) is ErrorCode.NONE
    assert refusal(1, GROWN, StoredLayout(4, 2)) is ErrorCode.INVALID_PARTITION_METADATA
    assert refusal(5, SHRUNK, StoredLayout(6, 1)) is ErrorCode.INVALID_PARTITION_METADATA


# ---------------------------------------------------------------- hole 29: producers that name no layout


def test_hole_29_a_topic_never_resized_does_not_check_stock_producers() -> None:
    assert produce_admission(TopicPartition("t", 1), NEVER_RESIZED, RULES, None) is None
    assert produce_admission(TopicPartition("t", 1), UNKNOWN, RULES, None) is None


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP, CompressionType.ZSTD])
def test_hole_29_stock_batches_are_verified_by_key(compression: CompressionType) -> None:
    home, elsewhere = key_of(1), key_of(5)
    passes = keyed(home, None, home, compression=compression)
    assert refusal(1, GROWN, None, batch=passes) is ErrorCode.NONE
    for partition in range(6):
        assert refusal(partition, GROWN, None, batch=keyed(None, compression=compression)) is ErrorCode.NONE
    fails = keyed(home, elsewhere, compression=compression)
    assert refusal(1, GROWN, None, batch=fails) is ErrorCode.POLICY_VIOLATION


def test_a_repeated_short_key_is_hashed_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch of a stock producer is checked. Long keys are not kept in memory."""
    hashed: list[bytes] = []

    def counted(key: bytes) -> int:
        hashed.append(key)
        return positive_hash(key)

    monkeypatch.setattr(layout_admission, "positive_hash", counted)
    layout_admission._cached_home.cache_clear()
    long = key_of(1) * 2_000
    batch = keyed(*[key_of(1)] * 50)
    for _ in range(3):
        assert refusal(1, GROWN, None, batch=batch) is ErrorCode.NONE
    assert hashed == [key_of(1)]
    assert refusal(1, SHRUNK, None, batch=batch) is ErrorCode.NONE  # another layout has another partition for the key
    for _ in range(3):
        refusal(1, GROWN, None, batch=keyed(long))
    assert hashed == [key_of(1)] * 2 + [long] * 3


def test_hole_29_the_refusal_names_the_client_config_to_change() -> None:
    admission = produce_admission(TopicPartition("t", 1), GROWN, RULES, None)
    assert admission is not None
    with pytest.raises(LayoutRefusedError, match=r"t-1: record 1 .* partition 5, not 1.*metadata\.max\.age\.ms"):
        admission(keyed(key_of(1), key_of(5)))
    sealed = produce_admission(TopicPartition("t", 5), SHRUNK, RULES, None)
    assert sealed is not None
    with pytest.raises(LayoutRefusedError, match=r"t-5 is marked for deletion.*metadata\.max\.age\.ms"):
        sealed(keyed(None))


def test_hole_29_reject_refuses_a_well_placed_key_and_accept_takes_a_misplaced_one() -> None:
    misrouted = keyed(key_of(5))
    reject, accept = (DeliveryRules(True, rule) for rule in (StockProducerRule.REJECT, StockProducerRule.ACCEPT))
    assert refusal(1, GROWN, None, reject, keyed(key_of(1))) is ErrorCode.POLICY_VIOLATION
    assert refusal(1, NEVER_RESIZED, None, reject, misrouted) is ErrorCode.NONE
    assert refusal(1, GROWN, None, accept, misrouted) is ErrorCode.NONE
    assert refusal(5, SHRUNK, None, accept) is ErrorCode.POLICY_VIOLATION


def test_keys_after_a_shrink_are_verified_under_the_new_count() -> None:
    assert refusal(1, SHRUNK, None, batch=keyed(key_of(5, GROWN))) is ErrorCode.NONE


# ---------------------------------------------------------------- without ordered delivery


def test_without_ordered_delivery_only_sealed_partitions_refuse_batches() -> None:
    """A record appended after the seal would be removed unread, whether the record's order matters or not."""
    misrouted = keyed(key_of(5))
    for client in (None, StoredLayout(4, 0)):
        assert refusal(1, GROWN, client, OFF, misrouted) is ErrorCode.NONE
        assert refusal(5, SHRUNK, client, OFF) is not ErrorCode.NONE
