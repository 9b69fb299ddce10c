"""Config keys: names, ranges, and rules between keys."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from anabranch.client.config import LIBRDKAFKA_NAMES, AdminConfig, ConsumerConfig, ProducerConfig
from anabranch.client.group.assignors import resolve_assignors
from anabranch.confluent.config import RENAMED
from anabranch.zk_schemas.config_def import ConfigError


def test_defaults_are_kafkas() -> None:
    producer = ProducerConfig.parse({})
    assert (producer.acks, producer.enable_idempotence, producer.batch_size) == (-1, True, 16384)
    assert (producer.delivery_timeout_ms, producer.max_in_flight_requests_per_connection) == (120_000, 5)
    consumer = ConsumerConfig.parse({})
    assert (consumer.session_timeout_ms, consumer.max_poll_records, consumer.auto_offset_reset) == (
        45_000,
        500,
        "latest",
    )


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (ProducerConfig, {"linger_msec": 1}, "^linger_msec: .* nearest is linger_ms"),
        (ProducerConfig, {"batch.size": 1}, r"^batch\.size: .* nearest is batch_size"),
        (ProducerConfig, {"bootstrap_server": 1}, "^bootstrap_server: .* nearest is bootstrap_servers"),
        (ProducerConfig, {"nonsense": 1}, r"^nonsense: there is no such key: docs/configuration\.md has the keys$"),
        (AdminConfig, {"linger_ms": 5}, "^linger_ms: there is no such key"),
        (ProducerConfig, {"linger_ms": -1}, "^linger_ms: "),
        (ProducerConfig, {"linger_ms": float("inf")}, "^linger_ms: "),
        (ProducerConfig, {"linger_ms": "soon"}, "^linger_ms: "),
        (ProducerConfig, {"linger_ms": True}, "^linger_ms: "),
        (ProducerConfig, {"batch_size": 1.5}, "^batch_size: "),
        (ProducerConfig, {"acks": 2}, "^acks: "),
        (ProducerConfig, {"compression_type": "brotli"}, "^compression_type: "),
        (ProducerConfig, {"bootstrap_servers": "localhost"}, "^bootstrap_servers: "),
        (ProducerConfig, {"bootstrap_servers": "localhost:70000"}, "^bootstrap_servers: "),
        (ProducerConfig, {"value_serializer": "utf-8"}, "^value_serializer: "),
        (ProducerConfig, {"enable_idempotence": "yes"}, "^enable_idempotence: "),
        (ProducerConfig, {"acks": 1, "enable_idempotence": True}, "acks"),
        (ProducerConfig, {"delivery_timeout_ms": 10, "request_timeout_ms": 20}, "^delivery_timeout_ms: "),
        (ConsumerConfig, {"heartbeat_interval_ms": 45_000}, "^heartbeat_interval_ms: "),
        (ConsumerConfig, {"group_instance_id": "i"}, "^group_instance_id: "),
    ],
    ids=repr,
)
def test_the_error_for_a_key_that_is_refused_names_it(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        kind.parse(given)
    assert raised.value.key in given


def test_the_error_for_a_key_of_librdkafka_names_the_key_of_the_same_meaning() -> None:
    renamed = {key.replace(".", "_"): name for key, (name, _) in RENAMED.items()}
    assert {key: name for key, name in renamed.items() if key != name} == LIBRDKAFKA_NAMES
    for given, here in LIBRDKAFKA_NAMES.items():
        kinds = [kind for kind in (ProducerConfig, ConsumerConfig) if here in {each.name for each in fields(kind)}]
        assert kinds
        for kind in kinds:
            with pytest.raises(ConfigError, match=f"^{given}: there is no such key; use {here}$"):
                kind.parse({given: 1})
    with pytest.raises(ConfigError, match=r"^message_timeout_ms: there is no such key; the nearest is"):
        ConsumerConfig.parse({"message_timeout_ms": 1})


def test_servers_and_numbers_are_read_from_text() -> None:
    config = ProducerConfig.parse({"bootstrap_servers": "a:1, [::1]:2", "linger_ms": "5", "acks": "all"})
    assert config.bootstrap_servers == (("a", 1), ("::1", 2))
    assert (config.linger_ms, config.acks) == (5, -1)


def test_other_keys_disable_idempotence_only_if_it_was_not_set() -> None:
    assert not ProducerConfig.parse({"acks": 1}).enable_idempotence
    assert not ProducerConfig.parse({"max_in_flight_requests_per_connection": 6}).enable_idempotence


def test_the_delivery_timeout_follows_the_request_timeout() -> None:
    assert ProducerConfig.parse({"request_timeout_ms": 200_000}).delivery_timeout_ms == 200_000


@pytest.mark.parametrize(("fetch_bytes", "receive_bytes"), [(104_857_600, 209_715_200), (2**31 - 1, 2**31 - 1)])
def test_the_largest_answer_follows_the_size_of_a_fetch_unless_it_was_set(fetch_bytes: int, receive_bytes: int) -> None:
    config = ConsumerConfig.parse({"fetch_max_bytes": fetch_bytes})
    assert config.receive_message_max_bytes == receive_bytes
    with pytest.raises(ConfigError, match="receive_message_max_bytes: 104857600 is not above fetch_max_bytes"):
        ConsumerConfig.parse({"fetch_max_bytes": fetch_bytes, "receive_message_max_bytes": 104_857_600})
    both = {"fetch_max_bytes": 2**31 - 1, "receive_message_max_bytes": 2**31 - 1}
    assert ConsumerConfig.parse(both).fetch_max_bytes == 2**31 - 1


def test_assignors_are_found_by_name() -> None:
    given = ConsumerConfig.parse({"partition_assignment_strategy": "roundrobin,range"}).partition_assignment_strategy
    assert [a.name for a in resolve_assignors(given)] == ["roundrobin", "range"]
    with pytest.raises(ConfigError, match="sticky"):
        resolve_assignors(["stickiest"])
