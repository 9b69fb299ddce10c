"""A stream's driver: barriers, restarts from the checkpoint's JSON, removed and recreated partitions, refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from anabranch.protocol.stream_offsets import CheckpointError, DataLossError
from anabranch.protocol.types import TopicPartition
from anabranch.spark.looks import MissingTopicError
from anabranch.spark.options import OptionError, Use, read_options
from anabranch.spark.stream import QueryStream, StalledError
from tests.unit.spark.fake_reader import FakeReader

Json = Mapping[str, Any]


class Query:
    """A stream as Spark drives it. ``restart`` creates another stream, which knows only the checkpoint."""

    def __init__(self, reader: FakeReader, **options: str) -> None:
        self.reader = reader
        self._given = {"kafka.bootstrap.servers": "fake:1", "subscribe": "t", "startingOffsets": "earliest", **options}
        if "assign" in options or "subscribePattern" in options:
            del self._given["subscribe"]
        self.restart()

    def restart(self) -> None:
        self.stream = QueryStream(self.reader, read_options(self._given, Use.STREAM))  # type: ignore[arg-type]

    def initial(self) -> Json:
        return as_stored(anyio.run(self.stream.initial))

    def plan(self, start: Json, limit: int | None = None) -> Json:
        return as_stored(anyio.run(self.stream.latest, start, limit))

    def ranges(self, start: Json, end: Json) -> dict[int, tuple[int, int]]:
        return {one.partition: (one.start, one.end) for one in anyio.run(self.stream.ranges, start, end)}

    def next(self, start: Json, limit: int | None = None) -> tuple[Json, dict[int, tuple[int, int]]]:
        end = self.plan(start, limit)
        return end, self.ranges(start, end)


def as_stored(offsets: Json) -> Json:
    found: Json = json.loads(json.dumps(offsets))
    return found


def test_a_partition_that_gained_keys_waits_for_the_next_micro_batch() -> None:
    reader = FakeReader(1, end=10)
    query = Query(reader)
    start = query.initial()
    reader.split()
    reader.partitions[0].end, reader.partitions[1].end = 12, 5
    end, read = query.next(start)
    assert read == {0: (0, 12)}, "the records after the split in partition 0 are of keys that stay"
    end, read = query.next(end)
    assert read == {1: (0, 5)}


def test_a_restart_in_the_middle_of_a_resize_plans_the_same() -> None:
    reader = FakeReader(1, end=10)
    query = Query(reader)
    start = query.initial()
    reader.split()
    reader.partitions[1].end = 5
    end, read = query.next(start, 4)
    assert read == {0: (0, 4)}
    query.restart()
    assert query.ranges(start, end) == read, "an unfinished micro-batch is repeated unchanged"
    end, read = query.next(end, 4)
    assert read == {0: (4, 8)}
    query.restart()
    end, read = query.next(end, 4)
    assert read == {0: (8, 10)}
    query.restart()
    end, read = query.next(end, 4)
    assert read == {1: (0, 4)}


def test_the_first_micro_batch_is_repeated_as_it_was() -> None:
    """Spark does not store the start of a stream, and after a restart ``latest`` is a later offset."""
    reader = FakeReader(2, end=10)
    query = Query(reader, startingOffsets="latest")
    start = query.initial()
    reader.partitions[0].end = 15
    end, read = query.next(start)
    assert read == {0: (10, 15)}
    reader.partitions[0].end = reader.partitions[1].end = 30
    query.restart()
    assert query.ranges(query.initial(), end) == read
    _, read = query.next(end)
    assert read == {0: (15, 30), 1: (10, 30)}


def test_without_new_records_the_offset_stays_the_same() -> None:
    reader = FakeReader(2, end=10)
    query = Query(reader)
    end = query.plan(query.initial())
    reader.partitions[0].leader_epoch += 1
    assert json.dumps(query.plan(end)) == json.dumps(end), "a new leader alone is no change for Spark"


def removed_after(read_up_to: int, *, loses: str) -> tuple[Query, Json]:
    reader = FakeReader(1, end=10)
    reader.split()
    reader.partitions[1].end = 8
    query = Query(reader, failOnDataLoss=loses)
    end, _ = query.next(query.initial())
    if read_up_to:
        end, read = query.next(end, read_up_to)
        assert read == {1: (0, read_up_to)}
    reader.remove(1)
    return query, end


def test_a_removed_partition_that_was_read_to_its_end_is_no_loss() -> None:
    query, end = removed_after(8, loses="true")
    assert query.plan(end) == end
    query.reader.partitions[0].end = 11
    end, read = query.next(end)
    assert read == {0: (10, 11)}
    asked = query.reader.lineage_requests
    query.plan(end)
    assert query.reader.lineage_requests == asked, "the removal is known for this layout"


def test_a_removed_partition_that_was_not_read_to_its_end_is_a_loss() -> None:
    query, end = removed_after(5, loses="true")
    with pytest.raises(
        DataLossError, match=r"t-1 was removed at offset 8, and was read up to offset 5.*failOnDataLoss"
    ):
        query.plan(end)
    query.restart()
    with pytest.raises(DataLossError):
        query.plan(end)


def test_a_loss_that_is_allowed_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    query, end = removed_after(5, loses="false")
    end, read = query.next(end)
    assert read == {} and end["topics"]["t"]["partitions"]["1"]["offset"] == 8
    assert "t-1 was removed at offset 8" in caplog.text
    assert query.plan(end) == end


def test_a_partition_whose_removal_is_not_confirmed_stays_in_the_offset() -> None:
    query, end = removed_after(5, loses="true")
    query.reader.silent.add(1)
    assert query.plan(end) == end


def test_a_recreated_partition_is_read_from_where_it_ended() -> None:
    query, end = removed_after(8, loses="true")
    query.reader.split()
    query.reader.partitions[1].end = 9
    query.restart()
    end, read = query.next(end)
    assert read == {1: (8, 9)}


def test_an_incarnation_that_existed_only_between_two_plans_is_a_loss() -> None:
    query, end = removed_after(8, loses="true")
    query.plan(end)
    query.reader.split()
    query.reader.partitions[1].end = 9
    query.reader.remove(1)
    with pytest.raises(DataLossError, match="t-1 was removed at offset 9, and was read up to offset 8"):
        query.plan(end)


def test_a_new_partition_that_lost_records_before_it_was_seen_is_a_loss() -> None:
    reader = FakeReader(1)
    query = Query(reader)
    end = query.plan(query.initial())
    reader.split()
    reader.partitions[1].start = reader.partitions[1].end = 3
    with pytest.raises(DataLossError, match="the log of t-1, which is new, begins at offset 3, not at 0"):
        query.plan(end)


def test_a_checkpoint_of_another_cluster_is_refused() -> None:
    reader = FakeReader(1, end=3)
    query = Query(reader)
    start = query.initial()
    end = query.plan(start)
    reader.cluster_id = "cluster-b"
    query.restart()
    for refused in (lambda: query.plan(end), lambda: query.ranges(start, end)):
        with pytest.raises(CheckpointError, match=r"is of cluster cluster-a.* leads to cluster cluster-b"):
            refused()


def test_a_checkpoint_of_a_topic_that_was_deleted_is_refused() -> None:
    reader = FakeReader(1, end=3)
    query = Query(reader)
    end = query.plan(query.initial())
    reader.incarnation, query.reader.partitions[0].incarnation = 9, 60
    query.restart()
    with pytest.raises(CheckpointError, match=r"topic t .*incarnation 7.*was deleted.*incarnation 9"):
        query.plan(end)


def test_a_topic_that_was_deleted_is_an_error() -> None:
    reader = FakeReader(1, end=3)
    query = Query(reader)
    end = query.plan(query.initial())
    reader.is_deleted = True
    with pytest.raises(MissingTopicError, match="topic t does not exist"):
        query.plan(end)


def test_a_topic_of_a_pattern_that_was_deleted_is_a_loss() -> None:
    reader = FakeReader(1, end=3)
    query = Query(reader, subscribePattern="t.*")
    end = query.plan(query.initial())
    reader.is_deleted = True
    assert query.plan(end) == end, "the response may come from a lagging broker"

    def ask_on() -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            query.plan(end)

    with pytest.raises(DataLossError, match="topic t was deleted"):
        ask_on()


def test_a_topic_that_is_not_seen_for_a_moment_is_not_read_again() -> None:
    reader = FakeReader(1, end=3)
    query = Query(reader, subscribePattern="[tu]")
    end = query.plan(query.initial())
    read = end["topics"]["t"]["partitions"]["0"]
    assert (read["begin"], read["offset"]) == (0, 3)
    end["topics"]["u"] = json.loads(json.dumps(end["topics"]["t"]))  # no broker names topic u
    reader.partitions[0].end = 5
    after = query.plan(end)
    planned = anyio.run(query.stream.ranges, end, after)
    assert [(one.topic, one.start, one.end) for one in planned] == [("t", 3, 5)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribePattern": "[^t]*"}, "no longer reads topic t, which"),
        ({"assign": '{"t": [1]}'}, "no longer reads t-0, which"),
    ],
)
def test_a_partition_that_the_options_no_longer_name_is_a_loss(
    options: dict[str, str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = FakeReader(2, end=3)
    query = Query(reader)
    end = query.plan(query.initial())
    reader.partitions[0].end = 5
    with pytest.raises(DataLossError, match=expected):
        Query(reader, **options).plan(end)
    assert Query(reader, failOnDataLoss="false", **options).plan(end) == end
    assert expected in caplog.text


def test_a_start_behind_the_end_of_a_partition_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    begins = {"startingOffsets": '{"t": {"0": 4}}'}
    reader = FakeReader(2, end=3)
    with pytest.raises(DataLossError, match="t-0 ends at offset 3, before offset 4 of startingOffsets"):
        Query(reader, **begins).initial()
    Query(reader, failOnDataLoss="false", **begins).initial()
    assert "t-0 ends at offset 3" in caplog.text
    reader.partitions[0].end = 4
    Query(reader, **begins).initial()


def test_a_lagging_broker_that_knows_only_the_earlier_topic_is_ignored() -> None:
    reader = FakeReader(1, end=3)
    query = Query(reader)
    end = query.plan(query.initial())
    reader.incarnation, reader.partitions[0].end = 5, 9
    query.restart()
    assert query.plan(end) == end


@pytest.mark.parametrize("stored", [{}, {"version": 2}, {"version": 1, "topics": {"t": {}}}, {"version": 1}])
def test_a_checkpoint_of_another_format_is_refused(stored: Json) -> None:
    with pytest.raises(CheckpointError):
        Query(FakeReader(1)).plan(stored)


def test_an_available_now_query_reads_only_up_to_the_present_ends() -> None:
    reader = FakeReader(1, end=10)
    reader.split()
    reader.partitions[1].end = 5
    query = Query(reader)
    start = query.initial()
    anyio.run(query.stream.end_at_present)
    reader.partitions[0].end, reader.partitions[1].end = 20, 9
    end, read = query.next(start)
    assert read == {0: (0, 10)}
    end, read = query.next(end)
    assert read == {1: (0, 5)}
    assert query.plan(end) == end


def test_an_available_now_query_that_cannot_end_reports_what_it_waits_for() -> None:
    reader = FakeReader(1, end=10)
    reader.split()
    reader.partitions[1].end = 5
    del reader.partitions[0].ends[0]
    query = Query(reader)
    end = query.plan(query.initial())
    anyio.run(query.stream.end_at_present)
    with pytest.raises(
        StalledError, match="t-1 is not read to its present end: partition 1 from epoch 0 waits for partition 0"
    ):
        query.plan(end)


def test_processed_offsets_are_committed_before_the_next_plan() -> None:
    reader = FakeReader(2, end=10)
    query = Query(reader, **{"kafka.group.id": "g"})
    start = query.initial()
    end = query.plan(start)
    assert {tp.partition: o.offset for tp, o in reader.committed.items()} == {0: 0, 1: 0}, "the start offset"
    query.plan(end)
    assert {tp.partition: o.offset for tp, o in reader.committed.items()} == {0: 10, 1: 10}
    assert reader.committed[TopicPartition("t", 0)].incarnation == 50


def test_an_assigned_partition_that_waits_for_an_unassigned_one_is_refused() -> None:
    reader = FakeReader(1, end=10)
    reader.split()
    reader.partitions[1].end = 5
    query = Query(reader, assign='{"t": [1]}')
    start = query.initial()
    with pytest.raises(OptionError, match=r"assign.*t-1 must wait for t-0"):
        query.plan(start)
    query = Query(reader, assign='{"t": [1]}', **{"kafka.ordered.delivery.unassigned.parent": "ignore"})
    _, read = query.next(query.initial())
    assert read == {1: (0, 5)}


def test_partitions_of_ordered_topics_are_not_split(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(FakeReader(2, end=10), minPartitions="8")
    start = query.initial()
    end = query.plan(start)
    assert len(anyio.run(query.stream.ranges, start, end)) == 2
    assert "minPartitions does not split" in caplog.text
