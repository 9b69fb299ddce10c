"""The options of ``format("anabranch")``: Spark's names, and one sentence for each refused value."""

from __future__ import annotations

import pytest

from anabranch.client.config import ConsumerConfig
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from anabranch.spark.options import OptionError, Use, read_options, wants_headers, write_options
from anabranch.zk_schemas.config_def import ConfigError

SERVERS = {"kafka.bootstrap.servers": "a:1,b:2"}


def test_option_names_are_read_in_any_case() -> None:
    found = read_options(
        {
            **SERVERS,
            "KAFKA.Max.Partition.Fetch.Bytes": "1000",
            "subscribe": "a, b,a",
            "startingoffsets": '{"a": {"0": 23, "1": -1, "2": -2}}',
            "MAXOFFSETSPERTRIGGER": "5",
            "minPartitions": "7",
            "failOnDataLoss": "False",
            "includeHeaders": "true",
            "kafka.group.id": "g",
        },
        Use.STREAM,
    )
    assert found.subscription.named == ("a", "b")
    assert (
        found.begin.offsets == {"a": {0: 23, 1: LATEST_TIMESTAMP, 2: EARLIEST_TIMESTAMP}}
        and found.begin.default == EARLIEST_TIMESTAMP
    )
    assert (found.max_offsets_per_trigger, found.min_partitions) == (5, 7)
    assert (found.fail_on_data_loss, found.include_headers, found.group_id) == (False, True, "g")
    assert found.client == {"bootstrap_servers": "a:1,b:2", "max_partition_fetch_bytes": "1000"}


def test_a_task_fetches_more_at_once_than_a_consumer_of_many_partitions() -> None:
    client = read_options({**SERVERS, "subscribe": "t"}, Use.BATCH).client
    assert ConsumerConfig.parse(client).max_partition_fetch_bytes == 4 * ConsumerConfig().max_partition_fetch_bytes


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    stream, batch = (read_options({**SERVERS, "subscribe": "t"}, use) for use in (Use.STREAM, Use.BATCH))
    assert (stream.begin.default, batch.begin.default, batch.end.default) == (
        LATEST_TIMESTAMP,
        EARLIEST_TIMESTAMP,
        LATEST_TIMESTAMP,
    )
    assert stream.fail_on_data_loss and not stream.include_headers


def test_a_pattern_matches_whole_names_and_assign_names_partitions() -> None:
    pattern = read_options({**SERVERS, "subscribePattern": "ev.*"}, Use.STREAM).subscription
    assert pattern.matches("events") and not pattern.matches("xevents") and pattern.named == ()
    assigned = read_options({**SERVERS, "assign": '{"t": [2, 0, 2]}'}, Use.STREAM).subscription
    assert assigned.partitions == {"t": (0, 2)} and assigned.named == ("t",)


@pytest.mark.parametrize(
    ("given", "use", "message"),
    [
        ({"subscribe": "t", "startingOffset": "latest"}, Use.STREAM, "no such option; did you mean 'startingOffsets'"),
        ({"subscribe": "t", "rowsPerSecond": "1"}, Use.STREAM, "option 'rowsPerSecond': there is no such option"),
        ({"subscribe": "t", "endingOffsets": "latest"}, Use.STREAM, "a stream has no end"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "9"}, Use.BATCH, "a batch query has no triggers"),
        ({"subscribe": "t", "startingOffsets": "latest"}, Use.BATCH, "would read nothing"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": -1}}'}, Use.BATCH, "would read nothing"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, Use.BATCH, "would read nothing"),
        ({"subscribe": "t", "startingOffsets": "soon"}, Use.STREAM, "is no JSON"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": -3}}'}, Use.STREAM, "is not a partition with an offset"),
        ({"subscribe": "t", "startingOffsets": "earliest", "startingTimestamp": "1"}, Use.STREAM, "not together"),
        ({"subscribe": "t", "startingTimestamp": "noon"}, Use.STREAM, "no whole number"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, Use.STREAM, "is below 1"),
        ({"subscribe": "t", "failOnDataLoss": "no"}, Use.STREAM, "neither true nor false"),
        ({"subscribe": "t", "assign": '{"t": [0]}'}, Use.STREAM, "exclude each other"),
        ({}, Use.STREAM, "option 'subscribe': is missing"),
        ({"subscribe": " , "}, Use.STREAM, "names no topic"),
        ({"subscribePattern": "("}, Use.STREAM, "no regular expression"),
        ({"assign": '{"t": []}'}, Use.STREAM, "is not like"),
        ({"subscribe": "t", "kafka.enable.auto.commit": "true"}, Use.STREAM, "cannot be set"),
    ],
)
def test_an_invalid_option_is_refused_with_the_reason(given: dict[str, str], use: Use, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_options({**SERVERS, **given}, use)
    assert message in str(refused.value)


def test_invalid_client_options_and_missing_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="fetch_max_wait"):
        read_options({**SERVERS, "subscribe": "t", "kafka.fetch.max.wait": "1"}, Use.STREAM)
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        read_options({"subscribe": "t"}, Use.STREAM)
    with pytest.raises(OptionError, match="subscribe"):
        wants_headers({**SERVERS, "subscibe": "t"})


def test_a_sink_accepts_only_its_own_options() -> None:
    assert write_options({**SERVERS, "topic": "t", "kafka.linger.ms": "5"}).client["linger_ms"] == "5"
    with pytest.raises(OptionError, match="no such option"):
        write_options({**SERVERS, "subscribe": "t"})
    with pytest.raises(OptionError, match="may write a record twice"):
        write_options({**SERVERS, "topic": "t", "kafka.acks": "1"})
