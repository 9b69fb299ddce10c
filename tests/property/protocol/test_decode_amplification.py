"""Decoding costs at most 16 times the bytes of a message, in short steps, for every API, version and nested array.

The messages are made from the field tables. Nothing is timed: memory and objects are counted.
"""

from __future__ import annotations

import gc
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch.broker.log.slices import at_once
from anabranch.protocol import message_limits, steps
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.framing import decode_request_in_steps, decode_response_in_steps
from anabranch.protocol.message_limits import MIB, RequestLimits
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.schema import layout
from anabranch.runtime.pauses import STEPS_AT_ONCE
from tests.support.protocol.hostile_frames import (
    NESTED,
    Dense,
    Filling,
    dense_messages,
    request_header,
    tagged_requests,
    unknown_tags,
)

SMALL = 6_000
MOST_TIMES = 16
MOST_BLOCKS_AT_ONCE = 6_000
"""Objects between two pauses: 256 items of up to 18 objects each."""
MOST_KEPT = 16 * 1024
"""Caches of the interpreter."""
LEGITIMATE = Filling("legitimate", b"orders-eu", 1, 1, records=b"r" * 70)
NAMED_AT_ONCE = 20_000
"""The default of ``max.partitions``."""


class Cost:
    """What one decoding took: its peak of memory, the objects between two pauses, the memory that stays."""

    def __init__(self, decoding: Callable[[], steps.Steps[Any]]) -> None:
        self.refusal = ""
        self.most_blocks = 0
        gc.freeze()  # so that a collection looks at the objects of this decoding only
        tracemalloc.start()
        try:
            self._run(decoding())
            self.peak = tracemalloc.get_traced_memory()[1]
            gc.collect()
            self.kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    def _run(self, decoding: steps.Steps[Any]) -> None:
        blocks = sys.getallocatedblocks()
        try:
            for number, is_long in enumerate(decoding, 1):
                if is_long or number % STEPS_AT_ONCE == 0:
                    now = sys.getallocatedblocks()
                    self.most_blocks = max(self.most_blocks, now - blocks)
                    blocks = now
        except DecodeError as error:
            self.refusal = str(error)


def decoded_request(frame: bytes) -> Cost:
    key, version = struct.unpack(">hh", frame[:4])
    steps.decoder(API[ApiKey(key)].request, version)  # made at its first use, whatever the request is
    return Cost(lambda: decode_request_in_steps(memoryview(frame)))


@pytest.fixture
def no_flat_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets in proportion to the message, so that small messages show what large ones cost."""
    monkeypatch.setattr(message_limits, "FLAT_MEMORY", 0)
    monkeypatch.setattr(message_limits, "CONTROLLER_FLAT_MEMORY", 0)


@pytest.mark.usefixtures("no_flat_memory")
@pytest.mark.parametrize("dense", dense_messages("REQUEST"), ids=str)
def test_a_request_of_the_smallest_elements_costs_at_most_16_times_its_bytes(dense: Dense) -> None:
    frame = dense.request(SMALL)
    cost = decoded_request(frame)
    assert cost.peak <= MOST_TIMES * len(frame)
    assert cost.most_blocks <= MOST_BLOCKS_AT_ONCE
    assert cost.kept <= MOST_KEPT
    if cost.refusal:
        assert dense.path[-1] in cost.refusal or dense.path[0] in cost.refusal
        assert "elements" in cost.refusal


@pytest.mark.usefixtures("no_flat_memory")
@pytest.mark.parametrize("dense", dense_messages("RESPONSE"), ids=str)
def test_a_response_of_the_smallest_elements_is_bounded_for_its_client(dense: Dense) -> None:
    key = ApiKey(dense.table.api_key)
    steps.decoder(API[key].response, dense.version)
    frame = dense.response(SMALL)
    cost = Cost(lambda: decode_response_in_steps(key, dense.version, memoryview(frame)))
    assert cost.peak <= 1.25 * MOST_TIMES * len(frame)
    assert cost.most_blocks <= MOST_BLOCKS_AT_ONCE
    assert cost.kept <= MOST_KEPT


WORST = [(ApiKey.LEAVE_GROUP, "members"), (ApiKey.LEADER_AND_ISR, "topic_states.partition_states")]


def worst(key: ApiKey, path: str) -> Iterator[Dense]:
    """The fillings of one array, in the last layout that has it."""
    found = [
        dense for dense in dense_messages("REQUEST") if dense.table.api_key == key and ".".join(dense.path) == path
    ]
    last = max(dense.version for dense in found)
    return (dense for dense in found if dense.version == last and dense.filling.name != "nested")


@pytest.mark.parametrize(("key", "path"), WORST, ids=str)
def test_a_mebibyte_of_the_smallest_elements_costs_at_most_16_times_its_bytes(key: ApiKey, path: str) -> None:
    for dense in worst(key, path):
        frame = dense.request(MIB)
        cost = decoded_request(frame)
        assert cost.peak <= MOST_TIMES * len(frame), str(dense)
        assert cost.most_blocks <= MOST_BLOCKS_AT_ONCE
        assert cost.kept <= MOST_KEPT


@pytest.mark.parametrize("key", list(ApiKey))
@pytest.mark.parametrize("size", [MIB, 16 * MIB, 100 * MIB])
def test_the_budget_of_a_request_leaves_room_for_its_frame(key: ApiKey, size: int) -> None:
    assert RequestLimits().budget(key, size).memory + size <= (MOST_TIMES + 0.6) * size


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (ApiKey.LEAVE_GROUP, "members"),
        (ApiKey.PRODUCE, "topic_data"),
        (ApiKey.DESCRIBE_CONFIGS, "resources.configuration_keys"),
    ],
    ids=str,
)
def test_sixteen_mebibytes_of_the_smallest_elements_are_refused_before_they_are_decoded(key: ApiKey, path: str) -> None:
    cost = decoded_request(next(worst(key, path)).request(16 * MIB))
    assert "more than 1000000 elements in one message (request.max.elements)" in cost.refusal
    assert f"{path.rpartition('.')[2]}[]" in cost.refusal
    assert cost.peak <= MIB


def test_a_mebibyte_of_unknown_tags_is_refused_before_it_is_read() -> None:
    tested = 0
    for what, frame in tagged_requests(MIB):
        cost = decoded_request(frame)
        assert "are unknown; 10000 are accepted in one message" in cost.refusal, what
        assert cost.peak <= 64 * 1024, what
        tested += 1
    assert tested > 60


def test_unknown_tags_of_all_structs_count_together() -> None:
    def leave_group(tags: bytes, members: int) -> bytes:
        return request_header(13, 4) + b"\x02g" + bytes([members + 1]) + (b"\x01\0" + tags) * members + b"\0"

    tags = unknown_tags(4_500)
    assert not decoded_request(leave_group(tags, 6)).refusal
    assert "are unknown; 10000 are accepted in one message" in decoded_request(leave_group(tags, 10)).refusal


def of_latest_versions(kind: str) -> list[Dense]:
    """Each array of the latest version of each API."""
    return [
        dense._replace(filling=LEGITIMATE)
        for dense in dense_messages(kind)
        if dense.filling is NESTED
        and layout(dense.table, dense.version) == layout(dense.table, max(dense.table.versions))
    ]


@pytest.mark.parametrize("dense", of_latest_versions("REQUEST"), ids=str)
def test_a_request_that_names_everything_in_a_large_cluster_is_decoded(dense: Dense) -> None:
    """20,000 items, each with a short name and one item in each of its arrays: the densest of legitimate requests."""
    frame = dense.request(count=NAMED_AT_ONCE)
    most, _ = RequestLimits().of_bytes(dense.table.api_key)
    assert len(frame) <= most
    request = at_once(decode_request_in_steps(memoryview(frame)))
    assert request.header.api_key == dense.table.api_key


@pytest.mark.parametrize("dense", of_latest_versions("RESPONSE"), ids=str)
def test_a_response_about_everything_in_a_large_cluster_is_decoded(dense: Dense) -> None:
    key = ApiKey(dense.table.api_key)
    frame = dense.response(count=NAMED_AT_ONCE)
    assert at_once(decode_response_in_steps(key, dense.version, memoryview(frame)))[0] == 1
