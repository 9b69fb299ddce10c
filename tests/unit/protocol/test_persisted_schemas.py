"""KIP-915: the schemas of stored records change only by tagged fields.

A coordinator of an earlier release reads the records of this release. It ignores an unknown tagged field, and misreads
any other new field and a new version.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from anabranch.protocol.generate import table_modules, tables
from anabranch.protocol.schema import LATEST, Field, MessageSchema, Versions, field

STORED = {
    "OffsetCommitKey": ["versions 0-1", "group string 0+", "topic string 0+", "partition int32 0+"],
    "OffsetCommitValue": [
        "versions 0-4, flexible 4+",
        "offset int64 0+",
        "leader_epoch int32 3+",
        "metadata string 0+",
        "commit_timestamp int64 0+",
        "expire_timestamp int64 1",
    ],
    "GroupMetadataKey": ["versions 2", "group string 2+"],
    "GroupMetadataValue": [
        "versions 0-4, flexible 4+",
        "protocol_type string 0+",
        "generation int32 0+",
        "protocol string 0+ nullable 0+",
        "leader string 0+ nullable 0+",
        "current_state_timestamp int64 2+",
        "members []MemberMetadata 0+",
        "members.member_id string 0+",
        "members.group_instance_id string 3+ nullable 3+",
        "members.client_id string 0+",
        "members.client_host string 0+",
        "members.rebalance_timeout int32 1+",
        "members.session_timeout int32 0+",
        "members.subscription bytes 0+",
        "members.assignment bytes 0+",
    ],
    "TransactionLogKey": ["versions 0", "transactional_id string 0+"],
    "TransactionLogValue": [
        "versions 0-1, flexible 1+",
        "producer_id int64 0+",
        "producer_epoch int16 0+",
        "transaction_timeout_ms int32 0+",
        "transaction_status int8 0+",
        "transaction_partitions []TransactionPartitions 0+ nullable 0+",
        "transaction_partitions.topic string 0+",
        "transaction_partitions.partition_ids []int32 0+",
        "transaction_last_update_timestamp_ms int64 0+",
        "transaction_start_timestamp_ms int64 0+",
    ],
}
"""Kafka's versions and untagged fields of each stored record, in the order of their bytes. They never change."""
TAGS = {"OffsetCommitValue": {10256: "incarnation int64 4+", 10273: "rewinds int32 4+"}}
"""Each tag that a field ever had, with that field. A tag is never given to another field. Add new tags here."""
CLIENTS = {"ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "StickyAssignorUserData"}
"""Messages between members of a group. A coordinator stores the messages as bytes and does not read them."""


def stored() -> dict[str, MessageSchema]:
    """Return each table that is neither a request nor a response, by name."""
    found = (table for module in table_modules() for table in tables(module).values())
    return {table.name: table for table in found if table.api_key == -1 and table.name not in CLIENTS}


def fields(of: tuple[Field, ...], prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Return all fields by path; the fields of a nested struct follow the struct."""
    for one in of:
        yield prefix + one.name, one
        yield from fields(one.fields, f"{prefix}{one.name}.")


def shown(versions: Versions) -> str:
    if versions.last == LATEST:
        return f"{versions.first}+"
    return str(versions.first) if versions.first == versions.last else f"{versions.first}-{versions.last}"


def described(path: str, one: Field) -> str:
    nullable = f" nullable {shown(one.nullable)}" if one.nullable.first <= one.nullable.last else ""
    return f"{path} {one.type} {shown(one.versions)}{nullable}"


def untagged(table: MessageSchema) -> list[str]:
    flexible = f", flexible {shown(table.flexible)}" if table.flexible.first <= table.flexible.last else ""
    rows = [described(path, one) for path, one in fields(table.fields) if one.tag is None]
    return [f"versions {shown(table.versions)}{flexible}", *rows]


def misuses_of_tags(table: MessageSchema) -> list[str]:
    """Return tagged fields that are not registered, or that an older reader cannot skip."""
    tagged = [(path, one) for path, one in fields(table.fields) if one.tag is not None]
    known = TAGS.get(table.name, {})
    return [
        path
        for path, one in tagged
        if one.tag is None or known.get(one.tag) != described(path, one) or not one.ignorable
    ]


def incompatible(table: MessageSchema) -> bool:
    """Whether a reader of an earlier release misreads the record."""
    return untagged(table) != STORED[table.name] or bool(misuses_of_tags(table))


def test_kip_915_each_stored_schema_is_one_that_earlier_releases_read() -> None:
    found = stored()
    assert found.keys() == STORED.keys(), "a new record of an internal topic? freeze its fields in STORED"
    assert {name: untagged(table) for name, table in found.items()} == STORED
    assert {name: misuses_of_tags(table) for name, table in found.items()} == {name: [] for name in STORED}


def test_kip_915_the_highest_version_of_each_value_takes_tagged_fields() -> None:
    values = [table for name, table in stored().items() if name.endswith("Value")]
    assert len(values) == 3
    assert all(table.is_flexible(table.versions.last) for table in values)


def test_kip_915_the_module_of_a_stored_schema_states_that_its_version_stays() -> None:
    declaring = {
        module for module in table_modules() if STORED.keys() & {table.name for table in tables(module).values()}
    }
    docs = {
        module: importlib.import_module(f"anabranch.protocol.messages.{module}").__doc__ or "" for module in declaring
    }
    assert declaring == {"consumer_offsets", "transaction_log"}
    assert [module for module, text in docs.items() if "No higher versions will follow" not in text] == []


def with_field(table: MessageSchema, added: Field) -> MessageSchema:
    return replace(table, fields=(*table.fields, added))


def with_member_field(table: MessageSchema, added: Field) -> MessageSchema:
    *rest, members = table.fields
    return replace(table, fields=(*rest, replace(members, fields=(*members.fields, added))))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: with_field(table, field("added", "int32", "4+")),
        lambda table: with_field(table, field("added", "int32", "5+")),
        lambda table: with_member_field(table, field("added", "string", "4+")),
        lambda table: with_field(table, field("added", "int32", "4+", tag=0)),
        lambda table: with_field(table, field("added", "int32", "4+", tag=10256, ignorable=True)),
        lambda table: replace(table, fields=table.fields[1:]),
        lambda table: replace(table, fields=(*table.fields[1:], table.fields[0])),
        lambda table: replace(table, versions=Versions(0, 5)),
        lambda table: replace(table, flexible=Versions(3, LATEST)),
    ],
    ids=[
        "untagged",
        "untagged in a new version",
        "untagged in a nested struct",
        "a tag that is not registered",
        "a tag of another record",
        "a field removed",
        "fields in another order",
        "a new version",
        "flexible from an earlier version",
    ],
)
def test_kip_915_a_change_that_earlier_releases_misread_is_refused(
    change: Callable[[MessageSchema], MessageSchema],
) -> None:
    table = stored()["GroupMetadataValue"]
    assert not incompatible(table)
    assert incompatible(change(table))
