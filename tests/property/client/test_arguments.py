"""No argument of a user's ends a client's background task: each is used, or refused where the method is called.

Methods and parameters come from the signatures of the classes, so new ones are tested, too.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from anabranch import (
    Admin,
    Consumer,
    ConsumerRecord,
    FeatureUpdate,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    sync,
)
from anabranch.client.admin.types import ConfigOp, TopicDescription
from anabranch.client.arguments import shown
from anabranch.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from anabranch.client.errors import ClientFailedError, IllegalStateError, KafkaError
from anabranch.client.producer.message_batch import MessageBatch
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.generated.find_coordinator import FindCoordinatorResponse
from anabranch.protocol.primitives import EncodeError
from anabranch.protocol.request_kinds import ElectionType, UpgradeType
from anabranch.protocol.types import ZERO_UUID
from tests.unit.client.fake_broker import DROP, SERVED, FakeBroker

T0 = TopicPartition("t", 0)
T9 = TopicPartition("absent", 9)


HOSTILE: tuple[Any, ...] = (
    *(-1, -(2**63) - 1, 2**15, 2**31, 2**63, 2**64, 10**400, 10**5000),
    *(1.5, 0.0, math.nan, math.inf, -math.inf, True, None),
    *("", "x" * 100_000, "\ud800", "text", "(", "\0", b"", b"bytes", bytearray(b"b")),
    *([], {}, (), [object()], {"a": object()}, (1, 2, 3), object()),
    *(np.int64(7), np.int64(-7), np.uint64(2**63), np.float64(1.5), np.bool_(True), np.array([1, 2]), np.array(7)),
)

LISTENERS = {
    "listener": type("Listener", (), {"on_partitions_assigned": lambda self, partitions: None})(),
    "partition_key_listener": type("KeyListener", (), {"on_partition_key_assigned": lambda self, partitions: None})(),
}
DESCRIBED = TopicDescription("t", ZERO_UUID, False, ())
BATCH = MessageBatch(CompressionType.NONE, None, 1_000, lambda: 7)
BATCH.append(value=b"v")
VALID: dict[str, Any] = {
    "topic": "t",
    "withheld_partitions.topic": DESCRIBED,
    "value": b"v",
    "key": b"k",
    "partition": T0,
    "Producer.partition": 0,
    "headers": [("name", b"content")],
    "timestamp_ms": 7,
    "records": [(b"k", b"v")],
    "on_delivery": print,
    "batch": BATCH,
    "send_batch.partition": 0,
    "message": ConsumerRecord("t", 0, 2, 0, 7, 0, b"k", b"v", ()),
    "timeout": 0.001,
    "cached": True,
    "timeout_ms": 1,
    "getmany.timeout_ms": 0,
    "subscribe.topics": ["t"],
    "pattern": "t.*",
    **LISTENERS,
    "partitions": [T0],
    "max_records": 5,
    "offset": 3,
    "timestamps": {T0: 5},
    "Consumer.offsets": {T0: OffsetAndMetadata(5, "m")},
    "alter_group_offsets.offsets": {T9: OffsetAndMetadata(5, "m")},
    "least_s": 1.0,
    "create_topics.topics": [NewTopic("t", 1, 1, {"retention.ms": "5"}, {0: [1]})],
    "validate_only": True,
    "spares_stock_producers": True,
    "names": ["t"],
    "include_internal": False,
    "counts": {"t": 4},
    "broker": 1,
    "updates": {"f": FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)},
    "epochs": {T0: 1},
    "within_ms": 1,
    "election_type": ElectionType.PREFERRED,
    "targets": {T0: [1, 2]},
    "before": {T0: 5},
    "specs": {T0: "earliest"},
    "read_committed": True,
    "describe_configs.topics": ["t"],
    "describe_configs.brokers": [1],
    "describe_log_dirs.brokers": [1],
    "keys": ["retention.ms"],
    "alter_configs.topics": {"t": {"retention.ms": "5"}},
    "alter_configs.brokers": {1: {"retention.ms": "5"}},
    "incremental_alter_configs.topics": {"t": {"retention.ms": (ConfigOp.SET, "5")}},
    "incremental_alter_configs.brokers": {1: {"retention.ms": (ConfigOp.SET, "5")}},
    "levels": {"kafka": "INFO"},
    "states": ["Stable"],
    "group_ids": ["g"],
    "group_id": "g",
}
"""A valid value of each parameter, by ``method.parameter``, ``Class.parameter`` or ``parameter``."""

NEEDED = {("subscribe", "topics")}
"""Parameters that a call needs although they have a default."""
ALONE = {("subscribe", "topics"), ("subscribe", "pattern")}
"""Parameters that exclude the others."""
CLIENTS: tuple[type, ...] = (Producer, Consumer, Admin)
CONFIGS: dict[type, type] = {Producer: ProducerConfig, Consumer: ConsumerConfig, Admin: AdminConfig}


def methods(kind: type) -> list[tuple[str, list[inspect.Parameter]]]:
    """The public methods of a client that have parameters, with these."""
    found = []
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        parameters = list(inspect.signature(method).parameters.values())[1:]
        if parameters and not name.startswith("_"):
            found.append((name, parameters))
    return found


def valid_value(kind: type, method: str, parameter: str) -> Any:
    for key in (f"{method}.{parameter}", f"{kind.__name__}.{parameter}", parameter):
        if key in VALID:
            return VALID[key]
    raise AssertionError(f"{kind.__name__}.{method} has a new parameter {parameter}: add a valid value of it to VALID")


def spoilt(valid: Any) -> Iterator[Any]:
    """The hostile values, and the valid value with a hostile one at each place inside of it."""
    yield from HOSTILE
    if isinstance(valid, Mapping):
        for key, item in valid.items():
            yield from ({bad: item} for bad in spoilt(key) if _is_hashable(bad))
            yield from ({key: bad} for bad in spoilt(item))
    elif dataclasses.is_dataclass(valid) and not isinstance(valid, type | TopicDescription):
        for field in dataclasses.fields(valid):
            for bad in spoilt(getattr(valid, field.name)):
                yield dataclasses.replace(valid, **{field.name: bad})
    elif isinstance(valid, tuple | list):
        for at, item in enumerate(valid):
            for bad in spoilt(item):
                items = [*valid[:at], bad, *valid[at + 1 :]]
                yield type(valid)(*items) if hasattr(valid, "_fields") else type(valid)(items)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def arguments(kind: type, method: str, judged: str, value: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: ``value`` for the parameter ``judged``, valid values for those that a call needs."""
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter in dict(methods(kind))[method]:
        is_judged = parameter.name == judged
        is_needed = parameter.default is parameter.empty or (method, parameter.name) in NEEDED
        if not is_judged and (not is_needed or (method, judged) in ALONE):
            continue
        given = value if is_judged else valid_value(kind, method, parameter.name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += given if isinstance(given, list) else [given]
        else:
            by_name[parameter.name] = given
    return positional, by_name


@contextmanager
def understood(parameter: str, method: str, value: Any) -> Iterator[None]:
    """Fail for an error that tells a user nothing: it must name the parameter, or come from a broker or the state."""
    try:
        yield
    except Exception as error:
        # A record has its parts under their own names: the key of ``records`` is the ``key`` of a ``send``.
        names = ("key", "value", "records") if parameter == "records" else (parameter,)
        by_name = isinstance(error, TypeError | ValueError) and any(name in str(error) for name in names)
        of_state = isinstance(error, KafkaError | IllegalStateError) and not isinstance(error, ClientFailedError)
        if isinstance(error, EncodeError | UnicodeError) or not (by_name or of_state):
            pytest.fail(f"{method}({parameter}={shown(value)}): {error!r}")


FAST = {
    "request_timeout_ms": 2_000,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
}
SHORT: dict[type, dict[str, Any]] = {
    Producer: {"max_block_ms": 20},
    Consumer: {"default_api_timeout_ms": 20},
    Admin: {"default_api_timeout_ms": 500, "retries": 0},
}


@asynccontextmanager
async def broker() -> AsyncIterator[FakeBroker]:
    """A broker that reads each request, so that it was encoded, and closes the connection if it has no answer."""
    fake = FakeBroker({"t": 1})
    for key in ApiKey:
        if key not in SERVED and key in API:
            fake.answers[key] = lambda body: DROP
    fake.answers[ApiKey.FIND_COORDINATOR] = lambda body: FindCoordinatorResponse(
        node_id=1, host="127.0.0.1", port=fake.port
    )
    async with fake.running():
        yield fake


async def works(client: Any) -> None:
    """Use the client until it succeeds. Raises if a background task has ended."""
    while True:
        try:
            return await use(client)
        except ClientFailedError:
            raise
        except KafkaError:
            await anyio.lowlevel.checkpoint()


async def use(client: Any) -> None:
    if isinstance(client, Producer):
        await client.send_and_wait("t", b"good")
    elif isinstance(client, Consumer):
        await client.getmany()
        await client.end_offsets([T0])
    else:
        await client.list_topics()


async def call(client: Any, method: str, positional: list[Any], by_name: dict[str, Any]) -> None:
    """Call a method and wait for the outcome, but not for records that never come."""
    with anyio.move_on_after(0.1):
        result = getattr(client, method)(*positional, **by_name)
        while inspect.isawaitable(result):
            result = await result
        if inspect.isasyncgen(result):
            await anext(result)
            await result.aclose()


async def prepare(client: Any, method: str) -> None:
    if isinstance(client, Consumer):
        await client.unsubscribe()
        if method not in ("assign", "subscribe"):
            client.assign([T0])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Producer, {}),
        (Consumer, {}),
        (Consumer, {"group_id": "g", "enable_auto_offset_store": False}),
        (Admin, {}),
    ],
)
def test_each_argument_is_used_or_refused_by_its_name(kind: type, config: dict[str, Any]) -> None:
    async def check() -> None:
        async with broker() as fake, kind(bootstrap_servers=fake.address, **FAST, **SHORT[kind], **config) as client:
            for method, parameters in methods(kind):
                if method == "close" or (method == "subscribe" and config):  # nobody answers the group's requests
                    continue
                for parameter in parameters:
                    for bad in spoilt(valid_value(kind, method, parameter.name)):
                        await prepare(client, method)
                        with understood(parameter.name, method, bad):
                            await call(client, method, *arguments(kind, method, parameter.name, bad))
                    await prepare(client, method)
                    with anyio.fail_after(10):
                        await works(client)

    anyio.run(check)


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_config_key_is_used_or_refused_by_its_name(kind: type) -> None:
    keys = [field.name for field in dataclasses.fields(CONFIGS[kind])] + ["partitioner"] * (kind is Producer)

    async def check() -> None:
        async with broker() as fake:
            for key in keys:
                for bad in (*HOSTILE, *([value] for value in HOSTILE)):
                    client = None
                    with understood(key, kind.__name__, bad):
                        client = kind(**{"bootstrap_servers": fake.address, **FAST, **SHORT[kind], key: bad})
                    if client is None:
                        continue
                    with understood(key, kind.__name__, bad), anyio.move_on_after(0.1):
                        async with client:
                            await works(client)

    anyio.run(check)


@pytest.mark.parametrize("kind", [sync.Producer, sync.Consumer, sync.Admin])
def test_the_blocking_clients_refuse_the_same_arguments(kind: type) -> None:
    plain = {sync.Producer: Producer, sync.Consumer: Consumer, sync.Admin: Admin}[kind]
    with kind(bootstrap_servers="127.0.0.1:1") as client:
        for method, parameters in methods(plain):
            for parameter in parameters:
                positional, by_name = arguments(plain, method, parameter.name, object())
                with pytest.raises((TypeError, ValueError), match=parameter.name):
                    list(getattr(client, method)(*positional, **by_name))
