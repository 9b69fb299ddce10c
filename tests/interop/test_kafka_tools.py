"""Kafka's own command-line tools with Anabranch, and on its files. Skipped with a message without Java or Maven."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import ProcessCluster, wait_for
from bench.kafka_peer import kafka_jars, run_tool
from bench.maven import PeerUnavailable
from tests.interop.clients import LIBRARIES, Item
from tests.interop.dumps import assert_both_print_the_same
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.interop

DEADLINE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


class Tools:
    """Runs tools on one cluster. A tool that fails also fails the test, with its output."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __call__(self, tool: str, *arguments: str, stdin: str | None = None) -> str:
        done = run_tool(
            tool, "--bootstrap-server", self.cluster.bootstrap, *arguments, stdin=stdin, timeout_s=DEADLINE_S
        )
        assert done.returncode == 0, f"{tool} {arguments}: {done.stdout[-800:]} {done.stderr[-800:]}"
        return done.stdout

    def refused(self, tool: str, *arguments: str) -> str:
        """Run a tool whose request is refused. Returns its output."""
        done = run_tool(tool, "--bootstrap-server", self.cluster.bootstrap, *arguments, timeout_s=DEADLINE_S)
        assert done.returncode != 0 or "rror" in done.stdout
        return done.stdout + done.stderr


@pytest.fixture
def tools(cluster: Cluster) -> Tools:
    return Tools(cluster)


def test_replicas_move_and_leaders_are_elected(tools: Tools, fresh_name: Callable[[str], str], tmp_path: Path) -> None:
    """KIP-455, 460 and 73, as used by ``kafka-reassign-partitions --throttle`` and ``kafka-leader-election``."""
    topic = fresh_name("moved")
    tools("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "1:2,2:3")
    wanted = tmp_path / "wanted.json"
    partitions = [{"topic": topic, "partition": index, "replicas": [3, 1, 2]} for index in range(2)]
    wanted.write_text(json.dumps({"version": 1, "partitions": partitions}))
    plan = ("--reassignment-json-file", str(wanted))
    output = tools("kafka-reassign-partitions", "--execute", "--throttle", "10000000", *plan)
    assert "Successfully started partition reassignments" in output

    def verified() -> str:
        return tools("kafka-reassign-partitions", "--verify", *plan)

    wait_for(lambda: verified().count("is completed") == 2, DEADLINE_S, "both partitions are moved")
    assert "No partition reassignments found" in tools("kafka-reassign-partitions", "--list")
    elect = ("--election-type", "preferred", "--topic", topic, "--partition")
    for index in range(2):
        tools("kafka-leader-election", *elect, str(index))
    described = tools("kafka-topics", "--describe", "--topic", topic)
    assert described.count("Leader: 3") == 2 and described.count("Replicas: 3,1,2") == 2


def test_kafka_topics_creates_alters_and_deletes_topics(tools: Tools, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("tools")
    tools("kafka-topics", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=100000")
    described = tools("kafka-topics", "--describe", "--topic", topic)
    assert f"Topic: {topic}" in described and "PartitionCount: 3" in described and "retention.ms=100000" in described
    assert len(re.findall(r"Leader: [123]\s", described)) == 3
    tools("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tools("kafka-topics", "--describe", "--topic", topic)
    assert "already exists" in tools.refused("kafka-topics", "--create", "--topic", topic)
    more = tools.refused("kafka-topics", "--create", "--topic", fresh_name("tools"), "--replication-factor", "9")
    assert "replication factor" in more.lower()
    tools("kafka-topics", "--delete", "--topic", topic)
    assert topic not in tools("kafka-topics", "--list").split()
    assert "does not exist" in tools.refused("kafka-topics", "--describe", "--topic", topic)


def test_console_clients_write_and_read_and_a_groups_offsets_are_reset(
    tools: Tools, fresh_name: Callable[[str], str]
) -> None:
    topic, group = fresh_name("console"), fresh_name("console-group")
    create_topic(tools.cluster.bootstrap, topic, 2)
    lines = [f"key-{number % 5}:value {number}" for number in range(50)]
    keyed = ["--property", "parse.key=true", "--property", "key.separator=:"]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        text = "".join(f"{line} {codec}\n" for line in lines)
        tools("kafka-console-producer", "--topic", topic, "--compression-codec", codec, *keyed, stdin=text)
    printed = ["--property", "print.key=true", "--property", "key.separator=:", "--max-messages", "250"]
    seen = tools("kafka-console-consumer", "--topic", topic, "--group", group, "--from-beginning", *printed)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assert sorted(seen.splitlines()) == sorted(f"{line} {codec}" for codec in codecs for line in lines)

    assert group in tools("kafka-consumer-groups", "--list").split()
    committed = offsets_of(tools("kafka-consumer-groups", "--describe", "--group", group))
    ends = dict(re.findall(rf"{topic}:(\d):(\d+)", tools("kafka-get-offsets", "--topic", topic)))
    assert committed == ends and sum(map(int, ends.values())) == 250
    assert "Empty" in tools("kafka-consumer-groups", "--describe", "--group", group, "--state")
    reset = ["--group", group, "--topic", topic, "--reset-offsets", "--shift-by", "-10", "--execute"]
    tools("kafka-consumer-groups", *reset)
    moved = offsets_of(tools("kafka-consumer-groups", "--describe", "--group", group))
    assert {p: int(o) + 10 for p, o in moved.items()} == {p: int(o) for p, o in ends.items()}
    tools("kafka-consumer-groups", "--group", group, "--topic", topic, "--delete-offsets")
    tools("kafka-consumer-groups", "--group", group, "--delete")
    assert group not in tools("kafka-consumer-groups", "--list").split()


def offsets_of(described: str) -> dict[str, str]:
    """The committed offsets by partition, from the output of ``kafka-consumer-groups --describe``."""
    rows = [line.split() for line in described.splitlines() if line.strip()]
    return {row[2]: row[3] for row in rows if len(row) > 5 and row[2].isdigit()}


def test_verifiable_clients_write_and_read_every_record(tools: Tools, fresh_name: Callable[[str], str]) -> None:
    topic, group = fresh_name("verifiable"), fresh_name("verifiable-group")
    create_topic(tools.cluster.bootstrap, topic, 3)
    produced = tools("kafka-verifiable-producer", "--topic", topic, "--max-messages", "1000", "--acks", "-1")
    summary = json.loads(produced.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (1000, 1000)
    consumed = tools("kafka-verifiable-consumer", "--topic", topic, "--group-id", group, "--max-messages", "1000")
    events = [json.loads(line) for line in consumed.splitlines()]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 1000
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")


def test_configs_take_effect_at_once(tools: Tools, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("configured")
    create_topic(tools.cluster.bootstrap, topic, 1)
    tools("kafka-configs", "--alter", "--topic", topic, "--add-config", "max.message.bytes=2000")
    assert "max.message.bytes=2000" in tools("kafka-configs", "--describe", "--topic", topic)
    with pytest.raises(Exception, match="2000 are allowed"):
        LIBRARIES["kafka-python"].produce(tools.cluster.bootstrap, topic, [Item(b"k", b"x" * 5000)], "none")
    tools("kafka-configs", "--alter", "--topic", topic, "--delete-config", "max.message.bytes")
    LIBRARIES["kafka-python"].produce(tools.cluster.bootstrap, topic, [Item(b"k", b"x" * 5000)], "none")
    assert "no.such" in tools.refused("kafka-configs", "--alter", "--topic", topic, "--add-config", "no.such=1")
    out_of_range = tools.refused("kafka-configs", "--alter", "--topic", topic, "--add-config", "segment.bytes=1")
    assert "InvalidConfiguration" in out_of_range and "segment.bytes" in out_of_range
    tools("kafka-configs", "--alter", "--broker", "1", "--add-config", "log.cleaner.backoff.ms=20000")
    assert "log.cleaner.backoff.ms=20000" in tools("kafka-configs", "--describe", "--broker", "1")
    tools("kafka-configs", "--alter", "--broker", "1", "--delete-config", "log.cleaner.backoff.ms")
    assert "broker.id=1" in tools("kafka-configs", "--describe", "--broker", "1", "--all")


def test_levels_of_loggers_are_changed_while_the_broker_runs(tools: Tools) -> None:
    of_broker = ["--entity-type", "broker-loggers", "--entity-name", "1"]
    name = "anabranch.broker.net.connection"
    assert f"{name}=INFO" in tools("kafka-configs", "--describe", *of_broker)
    tools("kafka-configs", "--alter", *of_broker, "--add-config", f"{name}=DEBUG")
    described = tools("kafka-configs", "--describe", *of_broker)
    assert f"{name}=DEBUG" in described and "anabranch.broker.net.server=INFO" in described
    tools("kafka-configs", "--alter", *of_broker, "--delete-config", name)
    assert f"{name}=INFO" in tools("kafka-configs", "--describe", *of_broker)
    wrong = tools.refused("kafka-configs", "--alter", *of_broker, "--add-config", f"{name}=LOUD")
    assert "InvalidConfiguration" in wrong and "TRACE, DEBUG, INFO, WARN, ERROR, FATAL" in wrong


def test_records_are_deleted_and_log_dirs_described(
    tools: Tools, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic = fresh_name("deleted")
    create_topic(tools.cluster.bootstrap, topic, 1)
    LIBRARIES["confluent-kafka"].produce(
        tools.cluster.bootstrap, topic, [Item(b"k", b"%d" % number) for number in range(20)], "none"
    )
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 15}], "version": 1}))
    assert "low_watermark: 15" in tools("kafka-delete-records", "--offset-json-file", str(plan))
    earliest = tools("kafka-get-offsets", "--topic", topic, "--time", "earliest")
    assert earliest.strip() == f"{topic}:0:15"
    described = json.loads(tools("kafka-log-dirs", "--describe", "--topic-list", topic).splitlines()[-1])
    found = [
        partition
        for broker in described["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert [(p["partition"], p["size"] > 0, p["isFuture"]) for p in found] == [(f"{topic}-0", True, False)]
    assert "ApiVersions(18): 0 to 3" in tools("kafka-broker-api-versions")


def test_dump_log_reads_our_files(fresh_name: Callable[[str], str]) -> None:
    """The files are segments, indexes, snapshots, and records of ``__consumer_offsets`` (KIP-915)."""
    overrides = {"log.index.interval.bytes": "200", "log.segment.bytes": "20000", "offsets.topic.num.partitions": "1"}
    with ProcessCluster(brokers=1, overrides=overrides) as cluster:
        tools = Tools(cluster)
        topic = fresh_name("dumped")
        create_topic(cluster.bootstrap, topic, 1)
        items = [Item(b"key-%d" % (number % 7), b"v" * 100) for number in range(600)]
        for start in range(0, 600, 60):
            LIBRARIES["confluent-kafka"].produce(cluster.bootstrap, topic, items[start : start + 60], "none")
        tools("kafka-console-consumer", "--topic", topic, "--group", "g", "--from-beginning", "--max-messages", "600")
        directory = cluster.log_dir(1) / f"{topic}-0"
        logs = sorted(directory.glob("*.log"))
        assert len(logs) > 2
        dumped = dump(",".join(map(str, logs)), "--print-data-log", "--deep-iteration")
        assert [int(n) for n in re.findall(r"^\| offset: (\d+)", dumped, re.M)] == list(range(600))
        assert "isvalid: false" not in dumped
        wait_for(lambda: any(directory.glob("*.snapshot")), DEADLINE_S, "a producer snapshot is written")
        closed = logs[0].with_suffix("")
        for suffix in (".index", ".timeindex"):
            assert "offset: " in dump(f"{closed}{suffix}")
        assert "passed" in dump(f"{closed}.index", "--index-sanity-check")
        assert "producerId: " in dump(str(min(directory.glob("*.snapshot"))))
        offsets = dump(str(cluster.log_dir(1) / "__consumer_offsets-0" / f"{0:020d}.log"), "--offsets-decoder")
        assert '"group":"g"' in offsets and f'"topic":"{topic}"' in offsets
        assert '"version":"4"' in offsets, "flexible records (KIP-915)"
        assert_both_print_the_same([directory, cluster.log_dir(1) / "__consumer_offsets-0"])


def test_features_are_downgraded_and_upgraded(fresh_name: Callable[[str], str]) -> None:
    """KIP-584, with the tool's names since KRaft. The test has its own cluster, because other tests resize topics."""
    with ProcessCluster(brokers=1) as cluster:
        tools = Tools(cluster)
        described = tools("kafka-features", "describe")
        assert (
            "Feature: ordered_resize\tSupportedMinVersion: 1\tSupportedMaxVersion: 2\tFinalizedVersionLevel: 2"
            in described
        )
        refused = tools.refused("kafka-features", "downgrade", "--feature", "group_coordinator=1", "--dry-run")
        assert "needs 'group_coordinator' at level 2" in refused
        assert "was disabled" in tools("kafka-features", "disable", "--feature", "ordered_resize")
        both = ["--feature", "group_coordinator=1", "--feature", "consumer_offsets_topic_schema=1"]
        assert tools("kafka-features", "downgrade", *both).count("was downgraded to 1") == 2
        assert "metadata.version" in tools.refused("kafka-features", "upgrade", "--metadata", "3.3")
        all_of_them = [part.replace("=1", "=2") for part in both]
        upgraded = tools("kafka-features", "upgrade", *all_of_them, "--feature", "ordered_resize=2")
        assert upgraded.count("was upgraded to") == 3
        wait_for(lambda: "Epoch: 3" in tools("kafka-features", "describe"), DEADLINE_S, "the broker knows the levels")


def dump(files: str, *arguments: str) -> str:
    """The output of kafka-dump-log. A mismatch that it finds in an index fails the test."""
    done = run_tool("kafka-dump-log", "--files", files, *arguments, timeout_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-800:]
    assert "Mismatches in" not in done.stdout and "Found timestamp mismatch" not in done.stdout
    return done.stdout
