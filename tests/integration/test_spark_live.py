"""``format("anabranch")`` on real Spark and brokers: a stateful query across resizes, restarts, refusals, the sink."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark]")
pytest.importorskip("pandas", reason="PySpark's stateful operators need pandas")

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupState

from anabranch.audit.run import spark_session
from anabranch.cli.main import main
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from anabranch.spark import register
from anabranch.sync import Producer
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from tests.support.controller.topics import create_topic
from tests.support.resize.resizes import create_resizable, is_settled, resize, with_admin
from tests.support.seen.page_blocks import join_lines

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
KEYS = 30
OLD_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]") as session:
        session.conf.set("spark.sql.shuffle.partitions", "1")
        yield session


class Live:
    """Queries over the shared cluster."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.directory = spark, bootstrap, directory

    def read(self, topic: str | None, **options: str) -> DataFrame:
        """A batch query; without a topic the options name the topics."""
        reader = self.spark.read.format("anabranch").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**({"subscribe": topic} if topic else {}), **options).load()

    def stream(self, topic: str | None, **options: str) -> DataFrame:
        """A streaming query; without a topic the options name the topics."""
        reader = self.spark.readStream.format("anabranch").option("kafka.bootstrap.servers", self.bootstrap)
        begin = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
        return reader.options(**begin, **({"subscribe": topic} if topic else {}), **options).load()

    def start(self, rows: DataFrame, take: Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
        writer = rows.writeStream.foreachBatch(take).outputMode("update")
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def read_all(self, rows: DataFrame) -> list[Row]:
        """Run a streaming query from its checkpoint until it has read everything."""
        found: list[Row] = []
        query = self.start(rows, lambda batch, _: found.extend(batch.collect()), availableNow=True)
        query.awaitTermination()
        return found

    def produce(self, topic: str, records: list[tuple[bytes, bytes]], timestamp_ms: int | None = None) -> None:
        with Producer(bootstrap_servers=self.bootstrap, linger_ms=5) as producer:
            for handle in [producer.send(topic, key=key, value=v, timestamp_ms=timestamp_ms) for key, v in records]:
                handle.result()


@pytest.fixture
def live(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Live:
    return Live(spark, cluster.bootstrap_servers, tmp_path)


def follow(key: tuple[str], pieces: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Keep the last number of a key. The rows name the places where the key's numbers are not consecutive."""
    last = state.get[0] if state.exists else -1
    rows = pd.concat(list(pieces)).sort_values("offset")
    broken = ""
    for number, partition in zip(rows["number"], rows["partition"]):
        if number != last + 1:
            broken += f"{number} of partition {partition} follows {last}; "
        last = int(number)
    state.update((last,))
    yield pd.DataFrame({"key": [key[0]], "number": [last], "broken": [broken]})


class Load:
    """A producer that numbers the records of each key, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.failure: Exception | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap) as producer:
                while not self._stopping.wait(0.02):
                    handles = [
                        producer.send(self._topic, key=b"key-%d" % key, value=b"%d" % self.rounds)
                        for key in range(KEYS)
                    ]
                    for handle in handles:
                        handle.result()
                    self.rounds += 1
        except Exception as error:
            self.failure = error

    def wait_for_more(self) -> None:
        before = self.rounds
        wait_for(lambda: self.failure or self.rounds >= before + 10, DEADLINE_S, "records are written")


def has_layout(bootstrap: str, topic: str, count: int) -> bool:
    found = with_admin(bootstrap, lambda admin: admin.describe_topics([topic]))[topic]
    return found.undeleted_partition_count == count and all(p.leader > 0 for p in found.partitions[:count])


def test_a_stateful_query_reads_each_key_without_a_gap_and_in_order_while_the_topic_is_resized(
    live: Live, cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    """Resizes 4 -> 6 -> 9 -> 6 -> 4. The query is stopped before it reads a resize. A broker dies in a micro-batch."""
    topic = fresh_name("numbers")
    create_resizable(live.bootstrap, topic, 4, replication_factor=3)
    last: dict[str, int] = {}
    broken: list[str] = []
    kill = threading.Event()

    def take(batch: DataFrame, _: int) -> None:
        if kill.is_set():  # the micro-batch is planned, but not read yet
            cluster.kill_broker(cluster.broker_ids[0])
            kill.clear()
        for row in batch.collect():
            if row.broken:
                broken.append(f"{row.key}: {row.broken}")
            last[row.key] = row.number

    options = {"kafka.group.id": fresh_name("spark"), "maxOffsetsPerTrigger": "1500"}
    numbered = live.stream(topic, **options).selectExpr(
        "cast(key as string) as key", "cast(cast(value as string) as int) as number", "partition", "offset"
    )
    states = numbered.groupBy("key").applyInPandasWithState(
        follow, "key string, number int, broken string", "last int", "update", "NoTimeout"
    )

    def resized(count: int) -> None:
        resize(live.bootstrap, topic, count, settle=False)
        wait_for(lambda: has_layout(live.bootstrap, topic, count), DEADLINE_S, f"{topic} has {count} partitions")
        load.wait_for_more()

    with contextlib.ExitStack() as stack:
        with Load(live.bootstrap, topic) as load:
            load.wait_for_more()
            query = live.start(states, take)
            resized(6)
            wait_for(lambda: last or query.exception(), DEADLINE_S, "the first micro-batch is read")
            resized(9)
            query.stop()
            resized(6)
            query = live.start(states, take)
            stack.callback(query.stop)
            kill.set()
            resized(4)
            wait_for(lambda: not kill.is_set() or query.exception(), DEADLINE_S, "a broker was killed")
            load.wait_for_more()
        assert load.failure is None

        def is_read() -> bool:
            return query.exception() is not None or set(last.values()) == {load.rounds - 1}

        wait_for(is_read, DEADLINE_S, "everything is read")
        assert query.exception() is None and broken == [] and len(last) == KEYS
        wait_for(
            lambda: is_settled(live.bootstrap, topic, 4), DEADLINE_S, "partitions are removed when the stream read them"
        )
        live.produce(topic, [(b"key-%d" % key, b"%d" % load.rounds) for key in range(KEYS)])
        wait_for(lambda: set(last.values()) == {load.rounds} or query.exception(), DEADLINE_S, "the stream continues")
        assert query.exception() is None and broken == []


def test_a_partition_removed_before_it_was_read_is_reported_as_data_loss(
    live: Live, fresh_name: Callable[[str], str]
) -> None:
    """No group reads the topic. The test deletes the rest of a marked partition, as if its records had expired."""
    topic = fresh_name("lost")
    create_resizable(live.bootstrap, topic, 1)
    marked = TopicPartition(topic, 1)

    resize(live.bootstrap, topic, 2)
    live.produce(topic, [(b"%d" % n, b"old") for n in range(20)])
    assert len(live.read_all(live.stream(topic))) == 20
    live.produce(topic, [(b"%d" % n, b"new") for n in range(20)])
    resize(live.bootstrap, topic, 1, settle=False)
    wait_for(lambda: has_layout(live.bootstrap, topic, 1), DEADLINE_S, f"{topic} has one partition")
    with_admin(live.bootstrap, lambda admin: admin.delete_records({marked: -1}))
    wait_for(lambda: is_settled(live.bootstrap, topic, 1), DEADLINE_S, f"{marked} is removed")
    with pytest.raises(StreamingQueryException, match=rf"{marked} was removed at offset \d+, and was read up to"):
        live.read_all(live.stream(topic))
    rows = live.read_all(live.stream(topic, failOnDataLoss="false"))
    assert rows and {(row.partition, row.value) for row in rows} == {(0, b"new")}


def test_a_checkpoint_of_a_topic_that_was_deleted_is_refused(live: Live, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("again")
    create_topic(live.bootstrap, topic, 1)
    live.produce(topic, [(b"k", b"v")])
    assert len(live.read_all(live.stream(topic))) == 1
    with_admin(live.bootstrap, lambda admin: admin.delete_topics([topic]))

    def is_gone() -> bool:
        return topic not in [found.name for found in with_admin(live.bootstrap, lambda admin: admin.list_topics())]

    wait_for(is_gone, DEADLINE_S, f"{topic} is deleted")
    create_topic(live.bootstrap, topic, 1)
    with pytest.raises(StreamingQueryException, match=f"the checkpoint is of topic {topic} with topic id"):
        live.read_all(live.stream(topic))


def test_topics_are_read_by_pattern_and_from_a_timestamp_on(live: Live, fresh_name: Callable[[str], str]) -> None:
    name = fresh_name("pattern")
    for topic in (f"{name}-a", f"{name}-b", f"other-{name}-a"):
        create_topic(live.bootstrap, topic, 1)
        live.produce(topic, [(b"k", b"old")], timestamp_ms=OLD_MS)
        live.produce(topic, [(b"k", b"new"), (b"k", b"last")], timestamp_ms=OLD_MS + 10)
    pattern = {"subscribePattern": f"{name}-."}
    both = {f"{name}-a", f"{name}-b"}

    after = {**pattern, "startingTimestamp": str(OLD_MS + 1)}
    young = live.read(None, **after).collect()
    assert {(row.topic, row.value) for row in young} == {
        (topic, value) for topic in both for value in (b"new", b"last")
    }
    assert live.read(None, startingTimestamp=str(OLD_MS + 11), **pattern).count() == 0
    assigned = live.read(None, assign=json.dumps({f"{name}-b": [0]})).collect()
    assert [(row.topic, row.offset) for row in assigned] == [(f"{name}-b", offset) for offset in range(3)]

    sizes: list[int] = []
    query = live.start(
        live.stream(None, maxOffsetsPerTrigger="2", **after),
        lambda batch, _: sizes.append(batch.count()),
        availableNow=True,
    )
    query.awaitTermination()
    assert [size for size in sizes if size] == [2, 2]
    create_topic(live.bootstrap, f"{name}-c", 1)
    live.produce(f"{name}-c", [(b"k", b"old")], timestamp_ms=OLD_MS)
    later = live.read_all(live.stream(None, **after))
    assert [(row.topic, row.offset) for row in later] == [(f"{name}-c", 0)], (
        "a topic found later is read from its start"
    )


def test_written_rows_are_read_back(live: Live, fresh_name: Callable[[str], str]) -> None:
    topic, copy = fresh_name("written"), fresh_name("copy")
    for name in (topic, copy):
        create_topic(live.bootstrap, name, 3)
    columns = "key string, value string, headers array<struct<key:string,value:binary>>, partition int"
    given = [
        (f"k{n}", None if n == 7 else f"v{n}", [("h", b"x"), ("i", None)] if n % 2 else None, None) for n in range(20)
    ]
    written = live.spark.createDataFrame([*given, ("k0", "pinned", None, 2)], columns)
    servers = {"kafka.bootstrap.servers": live.bootstrap}
    written.write.format("anabranch").mode("append").options(**servers, topic=topic).save()

    found = live.read(topic, includeHeaders="true", minPartitions="8")
    assert found.rdd.getNumPartitions() >= 8
    rows = found.collect()
    by_key = {row.key: row for row in rows if row.value != b"pinned"}
    assert {key: row.value for key, row in by_key.items()} == {
        key.encode(): value and value.encode() for key, value, _, _ in given
    }
    assert [(h.key, h.value) for h in by_key[b"k1"].headers] == [("h", b"x"), ("i", None)]
    assert all(row.partition == place(positive_hash(key), 3, 3) for key, row in by_key.items())
    assert [row.partition for row in rows if row.value == b"pinned"] == [2]
    ends = json.dumps({topic: {"0": 1, "1": 0, "2": 0}})
    assert [(row.partition, row.offset) for row in live.read(topic, endingOffsets=ends).collect()] == [(0, 0)]

    stream = live.stream(topic).selectExpr("key", "value", f"'{copy}' as topic").writeStream.format("anabranch")
    stream = stream.options(**servers, checkpointLocation=str(live.directory / "sink"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert live.read(copy).count() == 21


def test_an_impossible_read_or_write_is_refused_with_a_reason(live: Live, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("refused")
    register(live.spark)
    with pytest.raises(Exception, match=r"option 'subscibe': there is no such option; did you mean 'subscribe'"):
        live.read(topic, subscibe="t")
    writer = live.spark.range(1).selectExpr("'v' as value", "id").write.format("anabranch").mode("append")
    with pytest.raises(Exception, match="column 'id' cannot be written"):
        writer.options(**{"kafka.bootstrap.servers": live.bootstrap, "topic": topic}).save()
    missing = live.stream(topic, **{"kafka.default.api.timeout.ms": "500"})
    with pytest.raises(StreamingQueryException, match=f"topic {topic} does not exist"):
        live.read_all(missing)


def test_the_programs_of_the_documentation_run(
    live: Live, fresh_name: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    topic, copy = fresh_name("events"), fresh_name("counts")
    create_topic(live.bootstrap, topic, 2)
    create_topic(live.bootstrap, copy, 1)
    live.produce(topic, [(b"key-%d" % (n % 2), b"v") for n in range(6)])
    exported = live.directory / "exported"
    command = ["export", "--topic", topic, "--to", str(exported), "-b", live.bootstrap]
    subprocess.run([sys.executable, "-m", "anabranch.cli.main", *command], check=True, timeout=DEADLINE_S)
    values = {
        "127.0.0.1:9092": live.bootstrap,
        "/data/counts": str(live.directory / "counts"),
        "/data/exported": str(exported),
        '"events"': repr(topic),
        'topic="counts"': f"topic={copy!r}",
    }
    names: dict[str, Any] = {}
    read: list[int] = []
    for program in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL):
        for value, here in values.items():
            program = program.replace(value, here)
        exec(program, names)
        for query in live.spark.streams.active:
            query.processAllAvailable()
            read.append(sum(progress["numInputRows"] for progress in query.recentProgress))
            query.stop()
    assert sorted((row.key, row.value) for row in live.read(copy).collect()) == [(b"key-0", b"3"), (b"key-1", b"3")]
    assert read == [6], "the program has one stream, which reads these records"
    assert "|partition|offset|" in capfd.readouterr().out, "the program shows the exported segments"


def test_every_line_of_the_readmes_spark_section_runs(
    spark: SparkSession,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fresh_name: Callable[[str], str],
) -> None:
    """The lines lead from a new topic through a split to the streaming query and the audit's page.

    The lines that start Spark run in this process, on its session.
    """
    section = (ROOT / "README.md").read_text().split("\n## Spark\n")[1].split("\n## ")[0]
    lines = join_lines(re.findall(r"```\n(.*?)```", section, re.DOTALL)[1])
    topic = fresh_name("clicks")
    lines = re.sub(r"\bclicks\b(?!\.html)", topic, lines).splitlines()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANABRANCH_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
    monkeypatch.setattr("anabranch.audit.run.spark_session", lambda *_, **__: contextlib.nullcontext(spark))
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == ".venv/bin/python":
            monkeypatch.setattr(sys, "argv", arguments)
            monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
            runpy.run_path(arguments[0])
            assert os.environ["PYSPARK_PYTHON"] == sys.executable, "else Spark looks in the python3 of PATH"
            spark.conf.set("spark.sql.shuffle.partitions", partitions)
        elif arguments[0] == "audit":
            arguments[1] = str(tmp_path / arguments[1])  # Spark was started in another directory
            with pytest.raises(SystemExit, match=r"^0$"):
                main(arguments)
        else:
            subprocess.run(["bash", "-ec", line], check=True, timeout=DEADLINE_S)
    line = re.compile(r"micro-batch \d+: (\d+) records of \d+ keys, the values of (\d+) keys went back")
    counted = line.findall(capsys.readouterr().out)
    assert len(counted) >= 2, "a micro-batch ends at the split"
    assert sum(int(records) for records, _ in counted) == 20_000
    assert {back for _, back in counted} == {"0"}
    page = (tmp_path / "clicks.html").read_text()
    assert "Every key is in order" in page and "4 → 6" in page and page.count("order kept") == 2
