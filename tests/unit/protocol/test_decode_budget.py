"""The budget of a message: elements, memory and unknown tags, counted before they are allocated."""

from __future__ import annotations

import weakref

import pytest

from anabranch.broker.log.slices import at_once
from anabranch.protocol import steps
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.decode_budget import AT_ONCE, BudgetError, DecodeBudget, free_in_steps
from anabranch.protocol.framing import LARGE_FRAME_BYTES, RequestHeader, decode_request_in_steps, encode_request
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolSubscription
from anabranch.protocol.generated.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from anabranch.protocol.message import Message, encode_versioned
from anabranch.protocol.message_limits import RequestLimits
from anabranch.protocol.subscriptions import read_subscription, subscribed_topics

PLENTY = 1 << 30


def decoded(message: Message, version: int, budget: DecodeBudget) -> Message:
    wire = memoryview(message.encode(version))
    return at_once(steps.decode_prefix(type(message), wire, version, budget))[0]


def names(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{index}") for index in range(count)])


def fetch_offsets(*partitions: int) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[*partitions])])


def test_a_message_may_have_as_many_elements_as_its_budget_has() -> None:
    assert decoded(names(10), 9, DecodeBudget(10, PLENTY)) == names(10)
    with pytest.raises(
        BudgetError, match=r"^MetadataRequest v9: topics\[\]: more than 9 elements in one message .key.$"
    ):
        decoded(names(10), 9, DecodeBudget(9, PLENTY, "key"))


def test_the_elements_of_all_arrays_count_together() -> None:
    request = fetch_offsets(*range(9))
    assert decoded(request, 1, DecodeBudget(10, PLENTY)) == request
    with pytest.raises(BudgetError, match=r"topics\[\].partition_indexes\[\]: more than 9 elements"):
        decoded(request, 1, DecodeBudget(9, PLENTY))


def test_an_array_beyond_the_budget_is_refused_before_its_first_item() -> None:
    budget = DecodeBudget(1_000_000, 100_000)
    with pytest.raises(BudgetError, match=r"members\[\]: the elements are so small that they need 100000 bytes"):
        decoded(LeaveGroupRequest(members=[MemberIdentity() for _ in range(2_000)]), 4, budget)
    assert budget.large_arrays == []


def test_text_and_numbers_are_charged_by_what_they_are() -> None:
    short, long = DecodeBudget(10, PLENTY), DecodeBudget(10, PLENTY)
    decoded(MetadataRequest(topics=[MetadataRequestTopic(name="a")]), 9, short)
    decoded(MetadataRequest(topics=[MetadataRequestTopic(name="a" * 1_000)]), 9, long)
    assert 1_000 < short.memory - long.memory < 1_100
    few, equal, other = (DecodeBudget(10, PLENTY) for _ in range(3))
    decoded(fetch_offsets(1, 2, 3), 1, few)
    decoded(fetch_offsets(1_001, 1_001, 1_001), 1, equal)
    decoded(fetch_offsets(1_001, 1_002, 1_003), 1, other)
    assert (few.memory - equal.memory, few.memory - other.memory) == (32, 96)


def test_a_long_array_of_numbers_is_unpacked_in_slices() -> None:
    request = fetch_offsets(*range(10 * AT_ONCE + 5))
    wire = memoryview(request.encode(1))
    decoding = steps.decode_prefix(OffsetFetchRequest, wire, 1, DecodeBudget(PLENTY, PLENTY))
    long_steps = sum(1 for is_long in decoding if is_long)
    assert long_steps == 10
    assert decoded(request, 1, DecodeBudget(PLENTY, PLENTY)) == request


def test_requests_of_admins_of_the_controller_and_of_readers_have_limits_of_their_own() -> None:
    limits = RequestLimits(max_elements=5, max_admin_elements=3, max_controller_elements=7, max_fetch_elements=4)
    assert limits.budget(ApiKey.CREATE_TOPICS, 100).elements == 3
    assert limits._replace(max_elements=2).budget(ApiKey.CREATE_TOPICS, 100).elements == 2
    assert limits.budget(ApiKey.METADATA, 100).elements == 5
    assert limits.budget(ApiKey.UPDATE_METADATA, 100).elements == 7
    assert limits.budget(ApiKey.FETCH, 100).elements == 4
    assert limits._replace(max_elements=2).budget(ApiKey.FETCH, 100).elements == 2


def test_a_large_request_is_decoded_within_the_limits() -> None:
    header = RequestHeader(ApiKey.METADATA, 9, 1, "me")
    frame = memoryview(b"".join(encode_request(header, names(5_000)))[4:])  # type: ignore[arg-type]
    assert len(frame) > LARGE_FRAME_BYTES
    request = at_once(decode_request_in_steps(frame))
    assert request.body == names(5_000)
    assert request.large_arrays == [request.body.topics]  # type: ignore[attr-defined]
    with pytest.raises(BudgetError, match=r"topics\[\]: more than 4999 elements in one message .request.max.elements"):
        at_once(decode_request_in_steps(frame, RequestLimits(max_elements=4_999)))


class Item:
    """Something that is freed."""


def test_large_arrays_are_freed_in_steps() -> None:
    items = [Item() for _ in range(3 * AT_ONCE)]
    alive = weakref.WeakSet(items)
    arrays = [items]
    del items
    freeing = free_in_steps(arrays)
    next(freeing)
    assert (arrays, len(alive)) == ([], 3 * AT_ONCE)
    left = [len(alive) for _ in freeing]
    assert left == [2 * AT_ONCE, AT_ONCE, 0]


def test_what_a_refused_message_had_decoded_is_freed_in_steps() -> None:
    request = LeaveGroupRequest(members=[MemberIdentity(member_id=f"m-{index}") for index in range(5 * AT_ONCE)])
    wire = memoryview(request.encode(4)[:-1] + b"\1\1")  # cut short in the last tagged field
    decoding = steps.decode_prefix(LeaveGroupRequest, wire, 4, DecodeBudget(PLENTY, PLENTY))
    steps_taken: list[bool | None] = []
    with pytest.raises(steps.DecodeError, match="LeaveGroupRequest v4: cut short"):
        steps_taken.extend(decoding)
    assert sum(map(bool, steps_taken)) == 5


def test_a_subscription_of_very_many_topics_is_refused() -> None:
    def blob(topics: int) -> bytes:
        return encode_versioned(ConsumerProtocolSubscription(topics=[f"t{index}" for index in range(topics)]), 1)

    assert len(read_subscription(blob(20_000)).topics) == 20_000
    with pytest.raises(BudgetError, match=r"topics\[\]: more than 50000 elements"):
        read_subscription(blob(50_001))
    assert subscribed_topics([blob(50_001)]) is None


def test_a_count_of_topics_that_cannot_fit_is_refused_before_they_are_read() -> None:
    blob = b"\0\1" + (60_000).to_bytes(4, "big") + b"\0\0" * 40_000
    with pytest.raises(steps.DecodeError, match="topics: 60000 names do not fit into 80004 bytes"):
        read_subscription(blob)
