"""Stock clients before, during and after splits and merges: no record is lost, and no client hangs.

A stock producer sends a key to partition ``hash % partitions``. Ordered resize assigns the same partition while the
count is the initial count times a power of two. At other counts the partition is right only for some keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest

from anabranch import Admin
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from tests.interop.clients import LIBRARIES, Item
from tests.interop.stock_clients import PRODUCERS, STRANDED, GroupReader, KeyedLoad, all_stock_clients
from tests.support.controller.topics import create_topic
from tests.support.resize.resizes import create_resizable, is_settled, resize

pytestmark = pytest.mark.interop

INITIAL = 4
DEADLINE_S = 60.0
KEYS = [b"key-%d" % number for number in range(8)]


def expected_errors(name: str, mode: str, count: int) -> dict[bytes, int]:
    """The errors that a producer gets for each key, once it knows that a resized topic has ``count`` partitions."""
    if mode == "reject":
        return dict.fromkeys(KEYS, ErrorCode.POLICY_VIOLATION)
    if mode == "accept":
        return dict.fromkeys(KEYS, ErrorCode.NONE)
    right = {key: place(positive_hash(key), INITIAL, count) for key in KEYS}
    chosen = {key: PRODUCERS[name].key_hash(key) % count for key in KEYS}
    return {key: ErrorCode.NONE if chosen[key] == right[key] else ErrorCode.POLICY_VIOLATION for key in KEYS}


def wait_for_round(load: KeyedLoad, expected: dict[bytes, int], what: str) -> None:
    """Wait until a round that begins after this call has the expected errors."""
    begun = len(load.rounds) + 1

    def found() -> bool:
        load.check()
        rounds = load.rounds[begun:]
        return any({key: outcome.error for key, outcome in round.items()} == expected for round in rounds)

    try:
        wait_for(found, DEADLINE_S, f"{load.name}: {what}")
    except TimeoutError as late:
        raise AssertionError(f"{late}; after {len(load.rounds)} rounds: {load.rounds[-1]}, not {expected}") from late


def check_nothing_is_lost(loads: Sequence[KeyedLoad], readers: Sequence[GroupReader]) -> None:
    """Check that each group got every acknowledged record only at its acknowledged offset, and no refused record."""
    for load in loads:
        for reader in readers:

            def all_read(load: KeyedLoad = load, reader: GroupReader = reader) -> bool:
                reader.check()
                return load.acknowledged.keys() <= reader.seen.keys()

            try:
                wait_for(all_read, DEADLINE_S, f"{type(reader).__name__} reads the records of {load.name}")
            except TimeoutError as late:
                unread = [load.acknowledged[value] for value in load.acknowledged if value not in reader.seen]
                raise AssertionError(f"{late}; {len(unread)} unread: {sorted(unread)[:5]}") from late
            for value, outcome in load.acknowledged.items():
                assert reader.seen[value] == {(outcome.partition, outcome.offset)}, value
            assert not load.refused.keys() & reader.seen.keys()


@pytest.mark.parametrize(
    ("mode", "counts"),
    [("verify", [6, 9, 6, 4]), ("verify", [8, 4]), ("accept", [6, 4]), ("reject", [6, 4])],
    ids=["verified", "verified where the count doubles", "accepted", "rejected"],
)
def test_stock_clients_continue_through_resizes(
    cluster: Cluster, fresh_name: Callable[[str], str], mode: str, counts: list[int]
) -> None:
    """Running librdkafka producers also continue after a removal of partitions, which changes the topic id."""
    bootstrap, topic = cluster.bootstrap, fresh_name("resized")
    create_resizable(bootstrap, topic, INITIAL, {"ordered.delivery.stock.producers": mode})
    with all_stock_clients(bootstrap, topic, KEYS) as (loads, readers):
        for load in loads:
            wait_for_round(
                load, dict.fromkeys(KEYS, ErrorCode.NONE), "every record is accepted before the first resize"
            )
        for count in counts:
            resize(bootstrap, topic, count)
            for load in loads:
                wait_for_round(load, expected_errors(load.name, mode, count), f"it continues with {count} partitions")
            assert is_settled(bootstrap, topic, count)
        for load in loads:
            load.__exit__(None, None, None)
        check_nothing_is_lost(loads, readers)


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_record_for_a_marked_partition_fails_at_once(
    cluster: Cluster, fresh_name: Callable[[str], str], name: str
) -> None:
    """Stock clients do not retry the error, so the record does not wait for a delivery timeout of minutes."""
    bootstrap, topic = cluster.bootstrap, fresh_name("marked")
    create_topic(bootstrap, topic, INITIAL)
    resize(bootstrap, topic, INITIAL + 1)
    producer = PRODUCERS[name].open(bootstrap, topic)
    key = next(key for key in KEYS if place(positive_hash(key), INITIAL, INITIAL + 1) == INITIAL)
    assert producer.send(Item(key, b"before"), INITIAL).error == ErrorCode.NONE
    resize(bootstrap, topic, INITIAL, settle=False)
    wait_for(lambda: producer.send(Item(key, b"after"), INITIAL).error, DEADLINE_S, "the partition is closed")
    assert producer.send(Item(key, b"after"), INITIAL).error == ErrorCode.POLICY_VIOLATION
    library = "confluent-kafka" if name.startswith("librdkafka") else name
    drained = LIBRARIES[library].consume(bootstrap, topic, INITIAL + 1, 1)
    assert drained[INITIAL][0].value == b"before"
    delete_records(bootstrap, topic, INITIAL)
    wait_for(lambda: is_settled(bootstrap, topic, INITIAL), DEADLINE_S, "the empty partition is removed")
    assert producer.send(Item(key, b"gone"), INITIAL).error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.POLICY_VIOLATION,
    )
    producer.close()


@pytest.mark.parametrize("name", STRANDED)
def test_an_idempotent_producer_fails_after_a_refusal_and_a_new_one_continues(
    cluster: Cluster, fresh_name: Callable[[str], str], name: str
) -> None:
    """After a permanent refusal with any error, these two producers fail each later record at once."""
    bootstrap, topic = cluster.bootstrap, fresh_name("stranded")
    create_resizable(bootstrap, topic, INITIAL)
    keys = [b"key-%d" % number for number in range(200)]
    right, moved = (
        next(key for key in keys if place(positive_hash(key), INITIAL, 2 * INITIAL) == home)
        for home in (1, 1 + INITIAL)
    )
    producer = STRANDED[name].open(bootstrap, topic)
    assert producer.send(Item(right, b"before")).error == ErrorCode.NONE
    resize(bootstrap, topic, 2 * INITIAL)
    refused = producer.send(Item(moved, b"misplaced"), 1)
    assert refused.error == ErrorCode.POLICY_VIOLATION
    after = producer.send(Item(right, b"well placed"), 1)
    assert after.error in (ErrorCode.POLICY_VIOLATION, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.close()
    again = STRANDED[name].open(bootstrap, topic)
    assert again.send(Item(right, b"well placed"), 1).offset == 1
    assert again.send(Item(moved, b"well placed")) == (1 + INITIAL, 0, ErrorCode.NONE)
    again.close()


def delete_records(bootstrap: str, topic: str, partition: int) -> None:
    """Delete all records up to the high watermark."""

    async def run() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.delete_records({TopicPartition(topic, partition): -1})

    anyio.run(run)
