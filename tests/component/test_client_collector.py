"""``anabranch.prometheus``: a program's own registry exports the counters of its clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from anabranch import Consumer, Producer, TopicPartition
from anabranch.client.client_metrics import PRODUCER_TRAFFIC
from anabranch.client.errors import KafkaError
from anabranch.prometheus import ClientCollector
from tests.support.broker.broker_harness import one_broker

pytestmark = pytest.mark.trio

PRODUCER, CONSUMER = "kafka_producer_producer_metrics", "kafka_consumer_consumer_fetch_manager_metrics"
RECORDS = 20


async def test_metrics_of_a_client_are_exported_only_while_it_is_open(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    def value(name: str, client_id: str) -> float | None:
        return registry.get_sample_value(name, {"client_id": client_id})

    async with one_broker(tmp_path, {"message.max.bytes": "2000"}) as broker:
        await broker.create_topic("t")
        producer = Producer(bootstrap_servers=broker.bootstrap, client_id="writer")
        consumer = Consumer(bootstrap_servers=broker.bootstrap, client_id="reader", auto_offset_reset="earliest")
        registry.register(ClientCollector(producer, consumer))
        assert list(registry.collect()) == [], "no client is open"
        async with producer, consumer:
            for handle in [await producer.send("t", b"value") for _ in range(RECORDS)]:
                await handle
            assert value(f"{PRODUCER}_record_send_total", "writer") == RECORDS
            assert (value(f"{PRODUCER}_request_total", "writer") or 0) >= 1
            assert (value(f"{PRODUCER}_outgoing_byte_total", "writer") or 0) > RECORDS * len(b"value")
            assert value(f"{PRODUCER}_record_error_total", "writer") == 0
            assert value(f"{PRODUCER}_requests_in_flight", "writer") == 0
            assert value(f"{PRODUCER}_buffer_available_bytes", "writer") == producer.config.buffer_memory
            assert (value(f"{PRODUCER}_request_time_p99_ms", "writer") or 0) > 0
            assert value("anabranch_producer_ordered_delivery_layout_changes_total", "writer") == 0
            consumer.assign([TopicPartition("t", 0)])
            read = 0
            while read < 5:
                read += sum(map(len, (await consumer.getmany(timeout_ms=1000, max_records=5)).values()))
            assert value(f"{CONSUMER}_records_consumed_total", "reader") == read == 5
            assert (
                value(f"{CONSUMER}_records_lag_max", "reader")
                == value(f"{CONSUMER}_records_lag", "reader")
                == RECORDS - 5
            )
            assert value(f"{CONSUMER}_assigned_partitions", "reader") == 1
            with pytest.raises(KafkaError, match="allowed"):
                await (await producer.send("t", bytes(5_000)))
            assert value(f"{PRODUCER}_record_error_total", "writer") == 1
            assert value(f"{PRODUCER}_record_send_total", "writer") == RECORDS
        assert list(registry.collect()) == [], "both clients are closed"


async def test_counters_of_clients_with_the_same_client_id_are_summed(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        async with (
            Producer(bootstrap_servers=broker.bootstrap) as one,
            Producer(bootstrap_servers=broker.bootstrap) as two,
        ):
            registry.register(ClientCollector(one, two))
            for producer in (one, two):
                await (await producer.send("t", b"value"))
            assert registry.get_sample_value(f"{PRODUCER}_record_send_total", {"client_id": "anabranch"}) == 2
            longest_ms = max(each.metrics()[PRODUCER_TRAFFIC]["request-time-max-ms"] for each in (one, two))
            found = registry.get_sample_value(f"{PRODUCER}_request_time_max_ms", {"client_id": "anabranch"})
            assert found == longest_ms > 0
