"""Every znode class: round trips, unknown fields, Kafka's own content, and errors that name path and field."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.sentinels import LEADER_DURING_DELETE
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint, VersionRange
from anabranch.zk_schemas.cluster_id import ClusterId
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.controller import ControllerZnode, decode_controller_epoch, encode_controller_epoch
from anabranch.zk_schemas.delete_topic import DeleteTopic
from anabranch.zk_schemas.features import Features, FeaturesStatus, FinalizedFeature
from anabranch.zk_schemas.first_leader_epoch import FirstLeaderEpoch
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout, PartitionState
from anabranch.zk_schemas.producer_id_block import ProducerIdBlock
from anabranch.zk_schemas.topic import LAYOUT_FIELDS, TopicZnode
from anabranch.zk_schemas.znode import NO_ID, MalformedZnodeError, format_id, parse_id

TOPIC_ID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
EXAMPLES: list[Any] = [
    BrokerRegistration(
        [Endpoint("PLAINTEXT", "Node1", 9092), Endpoint("SSL", "::1", 9093)],
        {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL"},
        rack="r1",
        features={"ordered_resize": VersionRange(1, 2)},
        timestamp_ms=1700000000000,
    ),
    TopicZnode(
        TOPIC_ID,
        {0: [1, 2], 1: [2, 3]},
        1,
        2,
        3,
        last_leader_epochs={2: 7},
        last_offsets={2: 40},
        adding_replicas={0: [2]},
    ),
    PartitionState(4, 1, 2, [1, 2], PartitionLayout(6, 1), initial_partition_count=4),
    PartitionState(1, LEADER_DURING_DELETE, -1, []),
    PartitionState(
        4,
        1,
        7,
        [1],
        PartitionLayout(4, 4),
        initial_partition_count=4,
        before=Before(PartitionLayout(6, 3), 6),
        lineage=(LineageEntry(2, {5: 0}), LineageEntry(7, {4: 3, 5: 3})),
        lineage_times={7: 1_795_243_935_112},
        floor=1,
        newer_log="broker 1 has a newer log",
    ),
    TopicZnode(TOPIC_ID, {0: [1], 1: [2]}, 1, 2, 3, previous_undeleted_partition_count=1, wanted=4),
    ControllerZnode(1000, "127.0.0.1", 9090, 5),
    ControllerZnode(1000, "127.0.0.1", 9090, 5, release="0.1.0"),
    ConfigZnode({"retention.ms": "1000"}),
    ConfigChange("topics/a.b"),
    ClusterId("vGs2Ug1RQZSqXh5Yq1KQbA"),
    ProducerIdBlock(3, 1000, 1999),
    FirstLeaderEpoch(7),
    Features(FeaturesStatus.ENABLED, {"f": FinalizedFeature(1, 3)}),
    DeleteTopic("t"),
]


@pytest.mark.parametrize("znode", EXAMPLES, ids=lambda znode: type(znode).__name__)
def test_a_znode_is_read_back_as_written(znode: Any) -> None:
    assert type(znode).decode("/x/t", znode.encode()) == znode


@pytest.mark.parametrize("znode", EXAMPLES[:-1], ids=lambda znode: type(znode).__name__)
def test_unknown_fields_are_kept_on_rewrite(znode: Any) -> None:
    content = json.loads(znode.encode()) | {"from_the_future": {"a": [1, None]}}
    rewritten = type(znode).decode("/x", json.dumps(content).encode()).encode()
    assert json.loads(rewritten) == content


def test_unknown_fields_of_a_feature_are_kept() -> None:
    content = {
        "version": 1,
        "status": 1,
        "features": {"f": {"min_version_level": 1, "max_version_level": 2, "why": "x"}},
    }
    assert json.loads(Features.decode("/features", json.dumps(content).encode()).encode()) == content


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"version": 1, "status": 1}, "features: the field is missing"),
        ({"version": 2, "status": 0}, "features: the field is missing"),
        ({"version": 3, "status": 1, "features": {}}, "version"),
        ({"version": 1, "status": 1, "features": {"f": {"max_version_level": 2}}}, "features.f.min_version_level"),
    ],
)
def test_features_without_their_field_or_of_an_unknown_version_are_malformed(content: object, problem: str) -> None:
    """KIP-584: Kafka 3.9 refuses them too. Read as nothing, they would take the levels of a cluster away."""
    with pytest.raises(MalformedZnodeError, match=problem):
        Features.decode("/features", json.dumps(content).encode())


def test_features_that_kafka_writes_from_3_3_on_have_no_minimum_levels() -> None:
    """KIP-584, as KIP-778 changed it."""
    content = b'{"version":2,"status":1,"features":{"f":{"max_version_level":2}}}'
    assert Features.decode("/features", content).features == {"f": FinalizedFeature(1, 2)}


def test_a_topic_of_an_earlier_version_is_written_in_version_3() -> None:
    """The controller adds the topic id and the replica fields, as Kafka does with that version."""
    topic = TopicZnode.decode("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')
    assert json.loads(topic.encode())["version"] == 3
    later = TopicZnode.decode("/brokers/topics/t", b'{"version":4,"partitions":{"0":[1]}}')
    assert json.loads(later.encode())["version"] == 4


def test_unknown_fields_survive_replace() -> None:
    state = PartitionState.decode(
        "/s", b'{"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[1],"version":1,"x":1}'
    )
    assert json.loads(state.replace(leader=2).encode())["x"] == 1


def test_kafkas_own_topic_znode_gets_the_default_layout() -> None:
    data = (
        b'{"removing_replicas":{},"partitions":{"1":[2],"0":[1]},"topic_id":"a6e4EJ2tEdGAtADAT9QwyA",'
        b'"adding_replicas":{},"version":3}'
    )
    topic = TopicZnode.decode("/brokers/topics/t", data)
    assert topic.topic_id == TOPIC_ID
    assert list(topic.partitions.items()) == [(0, [1]), (1, [2])]
    assert (topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version) == (2, 2, 0)
    assert set(topic.absent) == set(LAYOUT_FIELDS)
    assert not TopicZnode.decode("/brokers/topics/t", topic.encode()).absent


@pytest.mark.parametrize("ordered", [True, False, None])
def test_ordered_delivery_is_written_once_it_is_settled(ordered: bool | None) -> None:
    topic = TopicZnode.new(TOPIC_ID, {0: [1]}).replace(ordered_delivery=ordered)
    assert TopicZnode.decode("/t", topic.encode()).ordered_delivery is ordered
    assert ("ordered_delivery" in json.loads(topic.encode())) is (ordered is not None)


def test_a_topic_znode_without_an_id_is_written_back_without_one() -> None:
    topic = TopicZnode.decode("/t", b'{"version":1,"partitions":{"0":[1]}}')
    assert topic.topic_id == NO_ID
    assert "topic_id" not in json.loads(topic.encode())


def test_kafkas_own_broker_registration_is_read_and_written_back() -> None:
    data = (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://kafka-1:9092"],'
        b'"jmx_port":-1,"port":9092,"host":"kafka-1","version":5,"timestamp":"1700000000000"}'
    )
    broker = BrokerRegistration.decode("/brokers/ids/1", data)
    assert broker.endpoint("PLAINTEXT") == Endpoint("PLAINTEXT", "kafka-1", 9092)
    assert broker.endpoint("SSL") is None
    assert broker.extra == {}
    assert json.loads(broker.encode()) == json.loads(data)


def test_a_broker_without_a_plaintext_listener_names_no_host() -> None:
    content = json.loads(BrokerRegistration([Endpoint("SSL", "h", 1)]).encode())
    assert (content["host"], content["port"]) == (None, -1)


def test_a_state_of_10_mb_is_refused_before_it_is_parsed() -> None:
    entries = b",".join(b'[%d,{"1":0}]' % epoch for epoch in range(800_000))
    with pytest.raises(MalformedZnodeError, match=r"znode /a/state: 1\d{7} bytes are more than the 1048576 of a znode"):
        PartitionState.decode("/a/state", b'{"lineage":[%s]}' % entries)


@pytest.mark.parametrize("text", ["PLAINTEXT://h:9092", "SSL://[::1]:1", "A://Upper:65535"])
def test_endpoint_text_round_trip(text: str) -> None:
    assert str(Endpoint.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["h:9092", "PLAINTEXT://h", "PLAINTEXT://h:x", "PLAINTEXT://h:70000", "://h:1", "P://h:1/x"]
)
def test_bad_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.parse(text)


STATE = b'{"controller_epoch":1,"leader":1,"leader_epoch":2,"isr":[1],'
BAD: list[tuple[Any, bytes, str]] = [
    (PartitionState, STATE + b'"lineage":{}}', "lineage"),
    (PartitionState, STATE + b'"lineage_times":[]}', "lineage_times"),
    (PartitionState, STATE + b'"lineage_times":{"x":1}}', "lineage_times"),
    (PartitionState, STATE + b'"lineage_times":{"2":-1}}', "lineage_times.2"),
    (PartitionState, STATE + b'"lineage_times":{"2":253402300800000}}', "lineage_times.2"),
    (PartitionState, STATE + b'"newer_log":true}', "newer_log"),
    (PartitionState, STATE + b'"lineage":[[1,{"0":0}],[2]]}', "lineage.1"),
    (PartitionState, STATE + b'"lineage":[[1,{"0":"x"}]]}', "lineage.0.0"),
    (PartitionState, STATE + b'"lineage":[[-1,{}]]}', "lineage.0"),
    (PartitionState, STATE + b'"lineage":[[1,{"0":0}],[1,{"4":0}]]}', "lineage.1"),
    (PartitionState, STATE + b'"lineage":[[2,{"0":0}],[1,{"4":0}]]}', "lineage.1"),
    (PartitionState, STATE + b'"lineage":[[3,{"0":0}]]}', "lineage.0"),
    (PartitionState, STATE + b'"lineage":[[1,{}]]}', "lineage.0"),
    (PartitionState, STATE + b'"lineage":[[1,{"0":-1}]]}', "lineage.0.0"),
    (PartitionState, STATE + b'"before":{"leader_epoch":1}}', "before.layout"),
    (
        PartitionState,
        STATE + b'"before":{"layout":{"undeleted_partition_count":1,"layout_version":0},"leader_epoch":2}}',
        "before.leader_epoch",
    ),
    (PartitionState, STATE + b'"floor":3}', "floor"),
    (PartitionState, STATE + b'"floor":-2}', "floor"),
    (TopicZnode, b'{"partitions":{"0":[1]},"wanted":0}', "wanted"),
    (TopicZnode, b"", ""),
    (TopicZnode, b"[1]", ""),
    (TopicZnode, b'{"partitions":{"0":[1]},"theirs":%s1%s}' % (b"[" * 33, b"]" * 33), "theirs"),
    (TopicZnode, b'{"theirs":%s1%s}' % (b"[" * 5000, b"]" * 5000), ""),
    (TopicZnode, b"{}", "partitions"),
    (TopicZnode, b'{"partitions":{}}', "partitions"),
    (TopicZnode, b'{"partitions":{"0":[1],"2":[1]}}', "partitions"),
    (TopicZnode, b'{"partitions":{"zero":[1]}}', "partitions"),
    (TopicZnode, b'{"partitions":{"0":[1]},"last_leader_epochs":{"%s":1}}' % (b"9" * 5000), "last_leader_epochs"),
    (TopicZnode, b'{"partitions":{"0":[1]},"last_leader_epochs":{"2147483648":1}}', "last_leader_epochs"),
    (TopicZnode, b'{"partitions":{"0":[1]},"last_leader_epochs":{"1":2147483647}}', "last_leader_epochs.1"),
    (TopicZnode, b'{"partitions":{"0":[1]},"last_offsets":{"1":-1}}', "last_offsets.1"),
    (TopicZnode, b'{"partitions":{"0":[1]},"last_offsets":{"1":9223372036854775807}}', "last_offsets.1"),
    (TopicZnode, b'{"partitions":{"0":[1]},"ordered_delivery":1}', "ordered_delivery"),
    (TopicZnode, b'{"partitions":{"0":[]}}', "partitions.0"),
    (TopicZnode, b'{"partitions":{"0":[1,1]}}', "partitions.0"),
    (TopicZnode, b'{"partitions":{"0":["1"]}}', "partitions.0"),
    (TopicZnode, b'{"partitions":{"0":[1]},"undeleted_partition_count":0}', "undeleted_partition_count"),
    (TopicZnode, b'{"partitions":{"0":[1]},"topic_id":"short"}', "topic_id"),
    (PartitionState, b'{"controller_epoch":1,"leader":1,"leader_epoch":0}', "isr"),
    (PartitionState, b'{"controller_epoch":1,"leader":-3,"leader_epoch":0,"isr":[]}', "leader"),
    (PartitionState, b'{"controller_epoch":1,"leader":true,"leader_epoch":0,"isr":[]}', "leader"),
    (
        PartitionState,
        b'{"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":[],"layout":{"layout_version":1}}',
        "layout.undeleted_partition_count",
    ),
    (
        PartitionState,
        STATE + b'"layout":{"undeleted_partition_count":6,"layout_version":1}}',
        "initial_partition_count",
    ),
    (BrokerRegistration, b'{"endpoints":[]}', "endpoints"),
    (BrokerRegistration, b'{"endpoints":["nowhere"]}', "endpoints"),
    (BrokerRegistration, b'{"endpoints":["A://h:1"],"features":{"f":{"min_version":1}}}', "features.f.max_version"),
    (BrokerRegistration, b'{"endpoints":["A://h:1"],"features":{"f":{"min_version":2,"max_version":1}}}', "features.f"),
    (BrokerRegistration, b'{"endpoints":["A://h:1"],"timestamp":"soon"}', "timestamp"),
    (ControllerZnode, b'{"brokerid":1,"host":"h","port":0}', "port"),
    (ConfigZnode, b'{"version":1,"config":{"a":1}}', "config.a"),
    (ConfigChange, b'{"version":2,"entity_path":"topics"}', "entity_path"),
    (ClusterId, b'{"version":"1","id":""}', "id"),
    (ProducerIdBlock, b'{"broker":1,"block_start":"5","block_end":"4"}', "block_end"),
    (FirstLeaderEpoch, b'{"first_leader_epoch":1073741825}', "first_leader_epoch"),
    (FirstLeaderEpoch, b'{"version":1}', "first_leader_epoch"),
    (Features, b"", ""),
    (Features, b"[]", ""),
    (Features, b"\xff", ""),
    (Features, b'{"status":2}', "status"),
    (Features, b'{"status":1,"features":{"f":{"min_version_level":3,"max_version_level":1}}}', "features.f"),
]


@pytest.mark.parametrize(
    ("schema", "data", "field"), BAD, ids=[f"{case[0].__name__}-{case[2]}-{n}" for n, case in enumerate(BAD)]
)
def test_malformed_content_names_path_and_field(schema: Any, data: bytes, field: str) -> None:
    with pytest.raises(MalformedZnodeError) as caught:
        schema.decode("/some/path", data)
    assert (caught.value.path, caught.value.field) == ("/some/path", field)
    assert "/some/path" in str(caught.value) and field in str(caught.value)


@pytest.mark.parametrize(
    ("lineage", "why"),
    [
        ([[3, {"1": 0}]], "leader epoch 3 is above the partition's, 2"),
        ([[0, {}]], "the entry of leader epoch 0 names no partition"),
        ([[0, {"1": -1}]], "-1 is not a leader epoch"),
        ([[0, {"1": 0}], [0, {"1": 0}]], "leader epoch 0 comes after 0: leader epochs must ascend"),
    ],
    ids=["newer", "empty", "negative", "twice"],
)
def test_a_lineage_that_contradicts_itself_is_malformed_with_a_reason(lineage: list[Any], why: str) -> None:
    with pytest.raises(MalformedZnodeError, match=re.escape(why)):
        PartitionState.decode("/some/path", STATE + b'"lineage":%s}' % json.dumps(lineage).encode())


@given(
    st.sampled_from([type(example) for example in EXAMPLES[:-1]]),
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_any_content_is_decoded_or_refused_with_the_typed_error(schema: Any, data: bytes) -> None:
    with contextlib.suppress(MalformedZnodeError):
        schema.decode("/p", data)


def test_kafkas_first_config_change_format_is_read() -> None:
    change = ConfigChange.decode("/c", b'{"version":1,"entity_type":"topics","entity_name":"a"}')
    assert (change.entity_type, change.entity_name) == ("topics", "a")


def test_controller_epoch_is_a_plain_number() -> None:
    assert decode_controller_epoch("/controller_epoch", encode_controller_epoch(12)) == 12
    with pytest.raises(MalformedZnodeError, match="/controller_epoch"):
        decode_controller_epoch("/controller_epoch", b"-1")


def test_producer_id_blocks_follow_each_other_and_end() -> None:
    first = ProducerIdBlock.first(1)
    second = first.next(2)
    assert (second.block_start, second.block_end, second.broker) == (1000, 1999, 2)
    with pytest.raises(OverflowError):
        ProducerIdBlock(1, 0, 2**63 - 1).next(1)


def test_topic_ids_are_read_and_written_in_kafkas_text_form() -> None:
    assert parse_id(format_id(TOPIC_ID)) == TOPIC_ID
    assert len(format_id(TOPIC_ID)) == 22
    for bad in ("", "a", "a6e4EJ2tEdGAtADAT9Qwy!", "a6e4EJ2tEdGAtADAT9QwyAAA"):
        with pytest.raises(ValueError):
            parse_id(bad)
