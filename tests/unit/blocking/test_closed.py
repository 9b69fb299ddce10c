"""Every call of a closed client is an error that says so, whether the client was used before or not."""

from __future__ import annotations

import inspect
import uuid
from typing import Any

import anyio
import pytest

import anabranch
from anabranch import TopicPartition, confluent, sync
from anabranch.client import MessageBatch, NewTopic, TopicDescription
from anabranch.client.cluster import PartitionInfo
from anabranch.client.errors import IllegalStateError
from anabranch.protocol.compression import CompressionType
from tests.unit.client.fake_broker import FakeBroker

T = TopicPartition("t", 0)
CT = confluent.TopicPartition("t", 0, 0)
ENDS = {"close", "stop"}
"""May be called again."""
ANY_TIME = {"wakeup"}
"""May be called by a thread that does not know of the end."""
VALUES: dict[str, Any] = {
    "batch": MessageBatch(CompressionType.NONE, None, 100, lambda: 0),
    "before": {T: 0},
    "broker": 1,
    "counts": {"t": 2},
    "epochs": {T: 0},
    "group_id": "g",
    "group_ids": ["g"],
    "least_s": 1,
    "levels": {"root": "INFO"},
    "names": ["t"],
    "offset": 0,
    "offsets": {T: 0},
    "partition": T,
    "partitions": [T],
    "records": [(b"k", b"v")],
    "specs": {T: "latest"},
    "targets": {T: [1]},
    "timestamps": {T: 0},
    "topic": "t",
    "topics": ["t"],
    "updates": {},
}
"""A valid argument by the name of the parameter."""
OTHERS: dict[str, dict[str, Any]] = {
    "alter_configs": {"topics": {"t": {"retention.ms": "1"}}},
    "withheld_partitions": {"topic": TopicDescription("t", uuid.UUID(int=1), False, (PartitionInfo(0, 1, 1),))},
    "create_topics": {"topics": [NewTopic("t")]},
    "describe_configs": {"topics": ["t"]},
    "incremental_alter_configs": {"topics": {"t": {"retention.ms": "1"}}},
    "send_batch": {"batch": VALUES["batch"], "topic": "t", "partition": 0},
    "store_offsets": {"offsets": {T: 1}},
    "subscribe": {"topics": ["t"]},
}
"""Arguments by method, where those by name do not fit."""
CONFLUENT_VALUES = {"topic": "t", "topics": ["t"], "partition": CT, "partitions": [CT]}
CONFLUENT_OTHERS: dict[str, dict[str, Any]] = {"store_offsets": {"offsets": [CT]}}


def calls(kind: type) -> dict[str, dict[str, Any]]:
    """The public methods of a class, with arguments."""
    is_confluent = kind.__module__.startswith("anabranch.confluent")
    values, others = (CONFLUENT_VALUES, CONFLUENT_OTHERS) if is_confluent else (VALUES, OTHERS)
    found: dict[str, dict[str, Any]] = {}
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or name in ENDS | ANY_TIME:
            continue
        parameters = [*inspect.signature(method).parameters.values()][1:]
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        found[name] = others.get(name) or {each: values[each] for each in needed}
    return found


async def not_refused(client: Any, arguments: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The calls that do not say that the client is closed, with what they do."""
    found: dict[str, Any] = {}
    for name, given in arguments.items():
        try:
            result = getattr(client, name)(**given)
            found[name] = await result if inspect.isawaitable(result) else result
        except IllegalStateError as error:
            if "is closed" not in str(error):
                found[name] = error
    return found


async def use(client: Any, address: str) -> None:
    """Use a client; a consumer has a record left in its buffer."""
    if not isinstance(client, anabranch.Consumer):
        await client.list_topics()
        return
    async with anabranch.Producer(bootstrap_servers=address) as producer:
        await producer.send_many("t", [(None, b"1"), (None, b"2")])
    client.assign([T])
    client.seek(T, 0)
    await client.getone()


@pytest.mark.parametrize("was_used", [False, True], ids=["never used", "used"])
@pytest.mark.parametrize("end", sorted(ENDS))
@pytest.mark.parametrize("kind", [anabranch.Admin, anabranch.Consumer, anabranch.Producer])
def test_each_call_of_a_closed_client_is_an_error(broker: FakeBroker, kind: Any, end: str, was_used: bool) -> None:
    async def check() -> None:
        client = kind(bootstrap_servers=broker.address)
        if was_used:
            await client.start()
            await use(client, broker.address)
        await getattr(client, end)()
        assert await not_refused(client, calls(kind)) == {}
        await client.close()
        await client.stop()

    anyio.run(check)


@pytest.mark.parametrize("was_used", [False, True], ids=["never used", "used"])
@pytest.mark.parametrize("end", sorted(ENDS))
@pytest.mark.parametrize("kind", [sync.Admin, sync.Consumer, sync.Producer])
def test_each_call_of_a_closed_blocking_client_is_an_error(
    broker: FakeBroker, kind: Any, end: str, was_used: bool
) -> None:
    client = kind(bootstrap_servers=broker.address)
    if was_used:
        client.list_topics()
    getattr(client, end)()
    assert anyio.run(not_refused, client, calls(kind)) == {}
    client.close()
    client.stop()
    assert client._loop is None or was_used


@pytest.mark.parametrize("was_used", [False, True], ids=["never used", "used"])
@pytest.mark.parametrize("kind", [confluent.Consumer, confluent.Producer])
def test_each_call_of_a_closed_client_is_an_error_as_in_confluent_kafka(
    broker: FakeBroker, kind: Any, was_used: bool
) -> None:
    client = kind({"bootstrap.servers": broker.address})
    if was_used:
        client.list_topics(timeout=10)
    client.close()
    assert anyio.run(not_refused, client, calls(kind)) == {}
    client.close()


def test_a_new_thread_with_the_number_of_the_ended_one_is_no_callback(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = sync.Admin(bootstrap_servers=broker.address).start()
    loop = admin._loop
    assert loop is not None
    admin.close()
    monkeypatch.setattr("anabranch.blocking.loop_thread.threading.get_ident", lambda: loop._thread.ident)
    assert not loop.is_current
