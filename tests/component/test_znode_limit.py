"""The number of partitions with which a topic's znode reaches ZooKeeper's limit, as docs/limits.md gives it."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from anabranch.runtime.env import SetOp, ZkRequestTooLargeError
from anabranch.runtime.zk_requests import DEFAULT_MAX_REQUEST_BYTES, check_fits
from anabranch.zk_schemas.topic import TopicZnode

MOST = 24_035
"""The most partitions of a topic with three replicas, broker ids of one digit and log ends of ten digits, after a merge
to one partition and a split again."""


def write_of(partitions: int) -> SetOp:
    """The write of a topic whose partitions, except the first, were removed and created again."""
    ends = dict.fromkeys(range(1, partitions), 10**9)
    topic = dataclasses.replace(
        TopicZnode.new(uuid.UUID(int=1), {p: [1 + (p + i) % 3 for i in range(3)] for p in range(partitions)}),
        last_leader_epochs=dict.fromkeys(ends, 9),
        last_offsets=ends,
    )
    return SetOp(topic.path("t"), topic.encode())


def test_the_znode_of_a_topic_with_removed_partitions_has_room_for_this_many() -> None:
    check_fits([write_of(MOST)], DEFAULT_MAX_REQUEST_BYTES)
    expected = r"^/brokers/topics/t: takes \d+ bytes in one request; ZooKeeper accepts 1048575 \(jute.maxbuffer\)$"
    with pytest.raises(ZkRequestTooLargeError, match=expected):
        check_fits([write_of(MOST + 1)], DEFAULT_MAX_REQUEST_BYTES)
