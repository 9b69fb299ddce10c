"""Kafka's own tools read batches of Anabranch's builder, and the audit reads logs of Kafka's own broker."""

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.audit.discovery import discover
from anabranch.protocol.compression import CompressionType
from bench.kafka_peer import KafkaCluster, kafka_jars, run_tool
from bench.maven import PeerUnavailable
from tests.interop.dumps import assert_both_print_the_same
from tests.support.audit.samples import write_sample

pytest.importorskip("pyspark", reason="the audit needs the extra [audit]")

from anabranch.audit.run import audit_with, spark_session

pytestmark = pytest.mark.interop

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def kafka() -> None:
    try:
        kafka_jars()
    except (PeerUnavailable, subprocess.TimeoutExpired) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def kafka_log_dir(kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of Kafka with 100 records of every codec, one aborted and one committed transaction."""
    directory = tmp_path_factory.mktemp("kafka")
    with KafkaCluster(
        directory, heap="256m", short=True, overrides={"transaction.state.log.num.partitions": "1"}
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.create_topics([NewTopic("events", 3, 1)]).values():
            future.result(30)
        for number, codec in enumerate(CODECS):
            _produce(cluster.bootstrap, codec, range(number * 100, number * 100 + 100))
        _produce_in_transactions(cluster.bootstrap)
    return directory / "kafka-1" / "data"


def _produce(bootstrap: str, codec: str, numbers: range) -> None:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
        }
    )
    for number in numbers:
        producer.produce("events", key=f"key-{number % 20}", value=f"{number}\t{'text ' * 20}", headers=[("h", b"x")])
    assert producer.flush(30) == 0


def _produce_in_transactions(bootstrap: str) -> None:
    producer = ConfluentProducer(
        {"bootstrap.servers": bootstrap, "transactional.id": "t", "partitioner": "murmur2_random"}
    )
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("events", key="key-1", value="1000\tonce, as far as a committed reader can see")
        producer.flush(30)
        end(30)


def test_kafkas_own_segment_files_pass_the_audit(kafka_log_dir: Path) -> None:
    with spark_session("local[2]", short=True) as spark:
        report = audit_with(spark, str(kafka_log_dir), discover(kafka_log_dir), "tsv:0", 10)
    assert [str(x) for check in report.checks for x in check.violations] == []
    assert "events" in report.topics
    assert report.records >= 500 + 4
    (order,) = [check for check in report.checks if check.name == "key order"]
    assert order.counted == 502


def test_both_dump_tools_print_the_same_for_kafkas_files(kafka_log_dir: Path) -> None:
    """The files include transactions, markers, offsets, indexes and snapshots."""
    directories = [path for path in kafka_log_dir.iterdir() if path.is_dir() and re.search(r"-\d+$", path.name)]
    assert any(path.stat().st_size for directory in directories for path in directory.glob("*.txnindex"))
    assert assert_both_print_the_same(directories) > 500


@pytest.mark.parametrize("partition", range(3))
def test_kafka_dump_log_reads_our_batches_of_every_codec(kafka: None, tmp_path: Path, partition: int) -> None:
    writer = write_sample(tmp_path)
    segment = writer.partitions[partition].segments[0]
    result = run_tool("kafka-dump-log", "--files", str(segment), "--deep-iteration", "--print-data-log")
    assert result.returncode == 0, result.stderr
    assert set(re.findall(r"compresscodec: (\w+)", result.stdout)) == {codec.name.lower() for codec in CompressionType}
    assert "isvalid: false" not in result.stdout
    records = [line for line in result.stdout.splitlines() if line.startswith("| offset:")]
    assert len(records) == int(writer.partitions[partition].segments[1].stem)
    assert all("change of key-" in line for line in records)
