"""The advertised APIs: the dispatch table, with the version ranges that were tested with stock clients."""

from __future__ import annotations

from anabranch.broker.net.dispatch import HANDLERS, Dispatcher
from anabranch.protocol.api_keys import ApiKey

ADVERTISED = {
    "PRODUCE": (0, 9),
    "FETCH": (4, 12),
    "LIST_OFFSETS": (1, 9),
    "METADATA": (0, 12),
    "LEADER_AND_ISR": (5, 5),
    "STOP_REPLICA": (0, 3),
    "UPDATE_METADATA": (7, 7),
    "OFFSET_COMMIT": (2, 8),
    "OFFSET_FETCH": (1, 8),
    "FIND_COORDINATOR": (0, 4),
    "JOIN_GROUP": (0, 7),
    "HEARTBEAT": (0, 4),
    "LEAVE_GROUP": (0, 4),
    "SYNC_GROUP": (0, 5),
    "DESCRIBE_GROUPS": (0, 5),
    "LIST_GROUPS": (0, 4),
    "API_VERSIONS": (0, 3),
    "CREATE_TOPICS": (2, 7),
    "DELETE_TOPICS": (1, 6),
    "DELETE_RECORDS": (0, 2),
    "INIT_PRODUCER_ID": (0, 4),
    "OFFSET_FOR_LEADER_EPOCH": (2, 4),
    "DESCRIBE_ACLS": (1, 3),
    "CREATE_ACLS": (1, 3),
    "DELETE_ACLS": (1, 3),
    "DESCRIBE_CONFIGS": (1, 4),
    "ALTER_CONFIGS": (0, 2),
    "ALTER_REPLICA_LOG_DIRS": (1, 2),
    "DESCRIBE_LOG_DIRS": (1, 4),
    "CREATE_PARTITIONS": (0, 3),
    "DELETE_GROUPS": (0, 2),
    "ELECT_LEADERS": (0, 2),
    "INCREMENTAL_ALTER_CONFIGS": (0, 1),
    "ALTER_PARTITION_REASSIGNMENTS": (0, 0),
    "LIST_PARTITION_REASSIGNMENTS": (0, 0),
    "OFFSET_DELETE": (0, 0),
    "UPDATE_FEATURES": (0, 1),
    "DESCRIBE_CLUSTER": (0, 0),
    "DESCRIBE_PRODUCERS": (0, 0),
    "CONSUMER_GROUP_POSITION": (0, 0),
    "PARTITION_LEADER_EPOCHS_FOR_PARTITIONS": (1, 1),
    "TOPIC_READERS": (0, 0),
    "DESCRIBE_HOLDS": (0, 0),
}


def test_every_advertised_api_has_a_handler_and_the_expected_versions() -> None:
    shown = {ApiKey(api.api_key).name: (api.min_version, api.max_version) for api in Dispatcher().advertised}
    assert shown == ADVERTISED
    assert {key.name for key in HANDLERS} == set(ADVERTISED)
