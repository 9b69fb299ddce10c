"""The committed generated modules match the tables, and they have every version in wire.md's table."""

from __future__ import annotations

import pathlib

import pytest

from anabranch.protocol import generated
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.generate import table_modules, write_all
from anabranch.protocol.schema import TableError, Versions, field, message

RANGES = {
    "PRODUCE": (0, 9, 9),
    "FETCH": (4, 12, 12),
    "LIST_OFFSETS": (1, 9, 6),
    "METADATA": (0, 12, 9),
    "LEADER_AND_ISR": (5, 5, 5),
    "STOP_REPLICA": (0, 3, 2),
    "UPDATE_METADATA": (7, 7, 7),
    "CONTROLLED_SHUTDOWN": (3, 3, 3),
    "OFFSET_COMMIT": (2, 8, 8),
    "OFFSET_FETCH": (1, 8, 6),
    "FIND_COORDINATOR": (0, 4, 3),
    "JOIN_GROUP": (0, 7, 6),
    "HEARTBEAT": (0, 4, 4),
    "LEAVE_GROUP": (0, 4, 4),
    "SYNC_GROUP": (0, 5, 4),
    "DESCRIBE_GROUPS": (0, 5, 5),
    "LIST_GROUPS": (0, 4, 3),
    "SASL_HANDSHAKE": (0, 1, None),
    "API_VERSIONS": (0, 3, 3),
    "CREATE_TOPICS": (2, 7, 5),
    "DELETE_TOPICS": (1, 6, 4),
    "DELETE_RECORDS": (0, 2, 2),
    "INIT_PRODUCER_ID": (0, 4, 2),
    "OFFSET_FOR_LEADER_EPOCH": (2, 4, 4),
    "DESCRIBE_ACLS": (1, 3, 2),
    "CREATE_ACLS": (1, 3, 2),
    "DELETE_ACLS": (1, 3, 2),
    "DESCRIBE_CONFIGS": (1, 4, 4),
    "ALTER_CONFIGS": (0, 2, 2),
    "ALTER_REPLICA_LOG_DIRS": (1, 2, 2),
    "DESCRIBE_LOG_DIRS": (1, 4, 2),
    "CREATE_PARTITIONS": (0, 3, 2),
    "DELETE_GROUPS": (0, 2, 2),
    "ELECT_LEADERS": (0, 2, 2),
    "INCREMENTAL_ALTER_CONFIGS": (0, 1, 1),
    "ALTER_PARTITION_REASSIGNMENTS": (0, 0, 0),
    "LIST_PARTITION_REASSIGNMENTS": (0, 0, 0),
    "OFFSET_DELETE": (0, 0, None),
    "ALTER_PARTITION": (0, 0, 0),
    "UPDATE_FEATURES": (0, 1, 0),
    "DESCRIBE_CLUSTER": (0, 0, 0),
    "DESCRIBE_PRODUCERS": (0, 0, 0),
    "CONSUMER_GROUP_POSITION": (0, 0, 0),
    "PARTITION_LEADER_EPOCHS_FOR_PARTITIONS": (1, 1, 1),
    "TOPIC_READERS": (0, 0, 0),
    "DESCRIBE_HOLDS": (0, 0, 0),
}


def test_generated_modules_are_up_to_date(tmp_path: pathlib.Path) -> None:
    write_all(tmp_path)
    committed = pathlib.Path(generated.__path__[0])
    fresh = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert sorted(fresh) == sorted(path.name for path in committed.glob("*.py"))
    stale = [name for name, text in fresh.items() if (committed / name).read_text() != text]
    assert not stale, "run: python -m anabranch.protocol.generate"


def test_every_api_has_a_table_and_the_expected_version_range() -> None:
    found = {api.key.name: (api.min_version, api.max_version, api.flexible_from) for api in API.values()}
    assert found == RANGES
    assert {key.name.lower() for key in ApiKey} == set(table_modules()) - {
        "consumer_offsets",
        "consumer_protocol",
        "transaction_log",
    }


@pytest.mark.parametrize("key", list(ApiKey))
def test_the_request_and_response_classes_of_an_api_have_its_key_and_versions(key: ApiKey) -> None:
    api = API[key]
    assert api.request.API_KEY == api.response.API_KEY == key
    versions = set(range(api.min_version, api.max_version + 1))
    assert set(api.request.DECODERS) == set(api.response.ENCODERS) == versions
    assert api.request.__name__ == api.name + "Request"


def test_version_ranges_are_parsed() -> None:
    assert list(Versions.parse("2-4")) == [2, 3, 4]
    assert list(Versions.parse("none")) == []
    assert 9 in Versions.parse("9+")
    assert 8 not in Versions.parse("9+")


def test_tables_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(TableError, match="known type"):
        field("a", "int33", "0+")
    with pytest.raises(TableError, match="must be a tagged field"):
        field("a", "Thing", "0+", fields=[field("b", "int8", "0+")])
    with pytest.raises(TableError, match="flexible"):
        message("M", versions="0-1", flexible="1+", fields=[field("a", "int8", "0+", tag=0)])
    with pytest.raises(TableError, match="ascend"):
        message(
            "M",
            versions="0",
            flexible="0+",
            fields=[field("a", "int8", "0+", tag=1), field("b", "int8", "0+", tag=0)],
        )
