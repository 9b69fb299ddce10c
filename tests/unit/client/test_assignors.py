"""Assignors: Kafka's documented outcomes, agreement with aiokafka, sticky assignment, marked partitions (KIP-253)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    PartitionSpan,
    RangeAssignor,
    RoundRobinAssignor,
    spread,
)
from anabranch.client.group.group_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from anabranch.protocol.types import TopicPartition


def tps(topic: str, *partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, p) for p in partitions]


def member(
    *topics: str, owned: list[TopicPartition] | None = None, generation: int = -1, instance: str | None = None
) -> MemberSubscription:
    return MemberSubscription(frozenset(topics), tuple(owned or ()), generation, instance)


def test_range_assigns_as_in_kafkas_example() -> None:
    counts = {"t0": 3, "t1": 3}
    assert RangeAssignor().assign(counts, {"c0": member("t0", "t1"), "c1": member("t0", "t1")}) == {
        "c0": tps("t0", 0, 1) + tps("t1", 0, 1),
        "c1": tps("t0", 2) + tps("t1", 2),
    }


def test_round_robin_assigns_as_in_kafkas_example() -> None:
    counts = {"t0": 1, "t1": 2, "t2": 3}
    members = {"c0": member("t0"), "c1": member("t0", "t1"), "c2": member("t0", "t1", "t2")}
    assert RoundRobinAssignor().assign(counts, members) == {
        "c0": tps("t0", 0),
        "c1": tps("t1", 0),
        "c2": tps("t1", 1) + tps("t2", 0, 1, 2),
    }


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = {"a": member("t"), "z": member("t", instance="1"), "y": member("t", instance="2")}
    assert RangeAssignor().assign({"t": 3}, members) == {"z": tps("t", 0), "y": tps("t", 1), "a": tps("t", 2)}


def test_a_topic_that_does_not_exist_is_left_out() -> None:
    for assignor in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor()):
        assert assignor.assign({"t": 1}, {"c": member("t", "gone")}) == {"c": tps("t", 0)}


def test_a_partition_claimed_by_two_members_stays_with_the_newer_generation() -> None:
    got = CooperativeStickyAssignor().assign(
        {"t": 2},
        {"a": member("t", owned=tps("t", 0, 1), generation=3), "b": member("t", owned=tps("t", 0), generation=4)},
    )
    assert got == {"a": tps("t", 1), "b": tps("t", 0)}


def test_the_generation_is_read_from_user_data_too() -> None:
    """Before subscription version 2, members send the generation in user data (Kafka's CooperativeStickyAssignor)."""
    assignor = CooperativeStickyAssignor()
    old = MemberSubscription(frozenset({"t"}), tuple(tps("t", 0)), user_data=assignor.user_data(9))
    got = assignor.assign({"t": 2}, {"a": old, "b": member("t", owned=tps("t", 0, 1), generation=8)})
    assert got == {"a": tps("t", 0), "b": tps("t", 1)}


@given(st.integers(1, 30), st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=6))
def test_sticky_is_balanced_and_moves_no_more_than_it_must(count: int, history: list[set[str]]) -> None:
    """Hypothesis chooses a sequence of memberships. The check follows both rebalances of each change."""
    assignor = CooperativeStickyAssignor()
    owned: dict[str, list[TopicPartition]] = {}
    for generation, present in enumerate(history):
        before = {m: owned.get(m, []) for m in present}
        for _ in range(2):
            members = {m: member("t", owned=owned.get(m, []), generation=generation) for m in present}
            owned = assignor.assign({"t": count}, members)
        sizes = [len(assigned) for assigned in owned.values()]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == count
        share = -(-count // len(present))
        for m, kept in before.items():
            assert len(set(kept) & set(owned[m])) >= min(len(kept), share - 1)


def test_aiokafka_agrees_on_range_and_round_robin() -> None:
    range_module = pytest.importorskip("aiokafka.coordinator.assignors.range")
    round_module = pytest.importorskip("aiokafka.coordinator.assignors.roundrobin")
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")

    class Metadata:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return set(range(counts[topic])) if topic in counts else None

    counts = {"t0": 5, "t1": 3, "t2": 1}
    wants = {"a": ["t0", "t1"], "b": ["t0", "t2"], "c": ["t0", "t1", "t2"]}
    theirs = {m: protocol.ConsumerProtocolMemberMetadata(0, w, b"") for m, w in wants.items()}
    ours = {m: member(*w) for m, w in wants.items()}
    for module, name, assignor in (
        (range_module, "RangePartitionAssignor", RangeAssignor()),
        (round_module, "RoundRobinPartitionAssignor", RoundRobinAssignor()),
    ):
        expected = {
            m: Counter((t, p) for t, ps in a.assignment for p in ps)
            for m, a in getattr(module, name).assign(Metadata(), theirs).items()
        }
        assert {m: Counter(map(tuple, a)) for m, a in assignor.assign(counts, ours).items()} == expected


def test_aiokafka_reads_our_subscriptions_and_we_read_those_of_aiokafka() -> None:
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")
    data = encode_subscription(["t"], tps("t", 1, 2), user_data=b"u", generation_id=5, rack_id="r")
    theirs = protocol.ConsumerProtocolMemberMetadata.decode(data)
    assert (list(theirs.subscription), theirs.user_data) == (["t"], b"u")
    ours = decode_subscription(data)
    assert (ours.topics, ours.owned, ours.generation_id, ours.rack_id) == ({"t"}, tuple(tps("t", 1, 2)), 5, "r")
    old = protocol.ConsumerProtocolMemberMetadata(0, ["t"], b"").encode()
    assert decode_subscription(old) == MemberSubscription(frozenset({"t"}), user_data=b"")


def test_an_encoded_assignment_is_read_back() -> None:
    assert decode_assignment(encode_assignment(tps("t", 2, 0))) == tuple(tps("t", 0, 2))
    assert decode_assignment(b"") == ()


def test_the_known_fields_of_an_assignment_of_a_later_version_are_read() -> None:
    """As Java clients do: the leader of the group may be a newer client."""
    written = encode_assignment(tps("t", 2, 0))
    later = (99).to_bytes(2, "big") + written[2:] + b"a field of version 99"
    assert decode_assignment(later) == tuple(tps("t", 0, 2))


ASSIGNORS: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor()]


def owner(*owned: int, topics: tuple[str, ...] = ("t",), generation: int = 1) -> MemberSubscription:
    return MemberSubscription(frozenset(topics), tuple(TopicPartition("t", p) for p in owned), generation)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda a: a.name)
def test_marked_and_unmarked_partitions_are_each_spread_evenly(assignor: Assignor) -> None:
    given_out = spread(assignor, {"t": PartitionSpan(8, 4)}, {"a": owner(), "b": owner()})
    for tps in given_out.values():
        assert sum(tp.partition < 4 for tp in tps) == 2
        assert sum(tp.partition >= 4 for tp in tps) == 2


@pytest.mark.parametrize(
    ("partitions", "undeleted", "span"),
    [
        (range(4), 4, (4, 4)),
        (range(6), 4, (6, 4)),
        (range(6), -1, (6, 6)),
        (range(4), 6, (4, 4)),
        ([0, 1, 2, 3, 5], 8, (6, 6)),
    ],
    ids=["settled", "marked", "plain Kafka", "none created yet", "created in another order"],
)
def test_the_span_of_a_topic_covers_every_partition_that_exists(
    partitions: Iterable[int], undeleted: int, span: tuple[int, int]
) -> None:
    assert PartitionSpan.of(partitions, undeleted) == span


def test_sticky_members_keep_marked_partitions_too() -> None:
    members = {"a": owner(0, 1, 5), "b": owner(2, 3, 4)}
    given_out = spread(CooperativeStickyAssignor(), {"t": PartitionSpan(6, 4)}, members)
    assert {m: sorted(tp.partition for tp in tps) for m, tps in given_out.items()} == {"a": [0, 1, 5], "b": [2, 3, 4]}


def test_a_marked_partition_that_moves_is_revoked_first() -> None:
    members = {"a": owner(0, 1, 4, 5), "b": owner(2, 3)}
    given_out = spread(CooperativeStickyAssignor(), {"t": PartitionSpan(6, 4)}, members)
    kept = {m: sorted(tp.partition for tp in tps) for m, tps in given_out.items()}
    assert kept == {"a": [0, 1, 5], "b": [2, 3]}  # the next rebalance assigns 4 to b


@given(
    undeleted=st.integers(1, 9),
    marked=st.integers(0, 9),
    other=st.integers(1, 5),
    subscriptions=st.lists(st.sampled_from([("t",), ("u",), ("t", "u")]), min_size=1, max_size=5),
    which=st.sampled_from(range(3)),
)
def test_every_partition_goes_to_exactly_one_member_that_wants_it(
    undeleted: int, marked: int, other: int, subscriptions: list[tuple[str, ...]], which: int
) -> None:
    members = {f"m{n}": owner(topics=topics, generation=-1) for n, topics in enumerate(subscriptions)}
    topics = {"t": PartitionSpan(undeleted + marked, undeleted), "u": PartitionSpan(other, other)}
    wanted = {name for names in subscriptions for name in names}
    given_out = spread(ASSIGNORS[which], topics, members)
    found = [tp for tps in given_out.values() for tp in tps]
    assert sorted(found) == [TopicPartition(name, p) for name in sorted(wanted) for p in range(topics[name].total)]
    assert all(tp.topic in members[m].topics for m, tps in given_out.items() for tp in tps)
