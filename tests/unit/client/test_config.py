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
    ("given", "nearest"),
    [("linger_msec", "linger_ms"), ("batch.size", "batch_size"), ("bootstrap_server", "bootstrap_servers")],
)
def test_the_error_for_an_unknown_key_names_the_nearest_key(given: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"nearest is {nearest}"):
        ProducerConfig.parse({given: 1})


def test_the_error_for_an_unknown_key_that_resembles_no_key_names_the_page_of_keys() -> None:
    with pytest.raises(ConfigError, match=r"^nonsense: there is no such key: docs/configuration\.md has the keys$"):
        ProducerConfig.parse({"nonsense": 1})


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("linger_ms", -1),
        ("linger_ms", float("inf")),
        ("linger_ms", "soon"),
        ("linger_ms", True),
        ("batch_size", 1.5),
        ("acks", 2),
        ("compression_type", "brotli"),
        ("bootstrap_servers", "localhost"),
        ("bootstrap_servers", "localhost:70000"),
        ("value_serializer", "utf-8"),
        ("enable_idempotence", "yes"),
    ],
)
def test_the_error_for_an_invalid_value_names_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key) as raised:
        ProducerConfig.parse({key: value})
    assert raised.value.key == key


def test_servers_and_numbers_are_read_from_text() -> None:
    config = ProducerConfig.parse({"bootstrap_servers": "a:1, [::1]:2", "linger_ms": "5", "acks": "all"})
    assert config.bootstrap_servers == (("a", 1), ("::1", 2))
    assert (config.linger_ms, config.acks) == (5, -1)


def test_other_keys_disable_idempotence_only_if_it_was_not_set() -> None:
    assert not ProducerConfig.parse({"acks": 1}).enable_idempotence
    assert not ProducerConfig.parse({"max_in_flight_requests_per_connection": 6}).enable_idempotence
    with pytest.raises(ConfigError, match="acks"):
        ProducerConfig.parse({"acks": 1, "enable_idempotence": True})


def test_the_delivery_timeout_must_not_be_below_the_request_timeout() -> None:
    with pytest.raises(ConfigError, match="delivery_timeout_ms"):
        ProducerConfig.parse({"delivery_timeout_ms": 10, "request_timeout_ms": 20})
    assert ProducerConfig.parse({"request_timeout_ms": 200_000}).delivery_timeout_ms == 200_000


def test_group_keys_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="heartbeat_interval_ms"):
        ConsumerConfig.parse({"heartbeat_interval_ms": 45_000})
    with pytest.raises(ConfigError, match="group_instance_id"):
        ConsumerConfig.parse({"group_instance_id": "i"})


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


def test_a_key_of_another_kind_of_client_is_refused() -> None:
    with pytest.raises(ConfigError):
        AdminConfig.parse({"linger_ms": 5})
