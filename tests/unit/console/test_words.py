"""The sentences of the console: rates, problems of a cluster, and reasons why a group is behind."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from anabranch import ClusterDescription, GroupDescription, TopicDescription
from anabranch.client.admin.types import ControllerDescription, MemberDescription, Node
from anabranch.client.cluster import PartitionInfo
from anabranch.console.app import _templates
from anabranch.console.behind import reasons, summary, verdict
from anabranch.console.changes import plan_of_reset
from anabranch.console.problems import NAMED, find_problems
from anabranch.console.query import BadQueryError, Query
from anabranch.console.rates import KEPT_S, Samples, hottest, outlook
from anabranch.console.watched import WatchedGroup, WatchedPartition
from anabranch.view.groups import AwaitedMember, GroupWait
from anabranch.view.unread import uncommitted_text


def test_a_rate_is_measured_over_the_window() -> None:
    samples = Samples(window_s=10)
    assert samples.rate is None
    for second in range(31):
        samples.add(second, 100 * second if second <= 20 else 2_000 + 7 * (second - 20))
    assert samples.rate == pytest.approx(7)


def test_no_rate_is_shown_before_the_minimum_time() -> None:
    samples = Samples(window_s=30, least_s=10)
    samples.add(0, 0)
    samples.add(9, 90)
    assert samples.rate is None
    samples.add(10, 100)
    assert samples.rate == pytest.approx(10)


def test_an_offset_that_goes_back_restarts_the_measurement() -> None:
    samples = Samples()
    samples.add(0, 1_000)
    samples.add(5, 10)
    assert samples.rate is None
    samples.add(6, 20)
    assert samples.rate == pytest.approx(10)


def test_the_number_of_samples_is_bounded() -> None:
    samples = Samples()
    for tenth in range(20_000):
        samples.add(tenth / 10, tenth)
    assert len(samples._kept) <= 2 * KEPT_S


@pytest.mark.parametrize(
    ("lag", "written", "read", "expected"),
    [
        (0, 5.0, 0.0, "is at the end"),
        (10, None, 5.0, "is being measured"),
        (10, 0.0, 0.0, "makes no progress"),
        (10, 50.0, 0.0, "makes no progress while 50 records/s are written"),
        (10, 50.0, 40.0, "falls behind: reads 40 records/s, 50 are written"),
        (10, 50.2, 49.8, "stays behind: 50 records/s are read and as many are written"),
        (10, 49.8, 50.2, "stays behind: 50 records/s are read and as many are written"),
        (600, 40.0, 50.0, "catches up in 60 s: reads 50 records/s, 40 are written"),
    ],
)
def test_the_outlook_compares_the_read_and_the_write_rate(
    lag: int, written: float | None, read: float | None, expected: str
) -> None:
    assert outlook(lag, written, read) == expected


def topic(*partitions: PartitionInfo) -> TopicDescription:
    return TopicDescription("t", uuid.UUID(int=1), False, partitions)


def cluster(*brokers: int, controller: int = 1) -> ClusterDescription:
    return ClusterDescription("c", controller, tuple(Node(b, "h", 9092) for b in brokers))


def test_a_healthy_cluster_has_no_problem() -> None:
    assert find_problems(cluster(1, 2), [topic(PartitionInfo(0, 1, 0, (1, 2), (1, 2)))], {1: []}) == []


@pytest.mark.parametrize(
    ("active", "is_reported", "is_problem"),
    [
        (None, True, True),
        (ControllerDescription(1000, "h", 9090, None), True, False),
        (None, False, False),
    ],
    ids=["none is active", "one is active", "brokers that do not report it"],
)
def test_an_absent_controller_is_a_problem_although_metadata_names_a_broker(
    active: ControllerDescription | None, is_reported: bool, is_problem: bool
) -> None:
    described = ClusterDescription("c", 1, (Node(1, "h", 9092),), active, is_reported)
    texts = [problem.text for problem in find_problems(described, [], {})]
    assert any(text.startswith("No controller is active") for text in texts) is is_problem


def test_each_problem_comes_with_advice() -> None:
    partitions = [
        PartitionInfo(0, 1, 0, (1, 3), (1,)),
        *(PartitionInfo(p, -1, 0, (3,), ()) for p in range(1, NAMED + 3)),
    ]
    found = find_problems(cluster(1, controller=-1), [topic(*partitions)], {1: ["/d"]})
    texts = [problem.text for problem in found]
    assert "No controller is active: no topic can be created or resized, and no leader can be elected." in texts
    assert f"Broker 3 is down. It has {NAMED + 3} replicas." in texts
    assert any(text.startswith("No client can read or write t-1, t-2") and "and 2 more" in text for text in texts)
    assert "Not all replicas are in sync: t-0. Behind: broker 3." in texts
    assert "The log directory /d of broker 1 is offline." in texts
    assert all(problem.todo for problem in found)


def row(partition: int, **values: Any) -> WatchedPartition:
    found = WatchedPartition(
        topic="t",
        partition=partition,
        committed_offset=50,
        high_watermark=100,
        lag=50,
        lag_s=5.0,
        expired=0,
        member="m-1",
        client_id="app-1",
        host="10.0.0.1",
        written_rate=10.0,
        read_rate=20.0,
    )
    return found._replace(**values)


def wait(partition: int, on: int, **values: Any) -> GroupWait:
    found = GroupWait("t", partition, 2, on, 1, 50, 45, 90, "m-1", "app-1", blocked=True, expiring=False)
    return found._replace(**values)


def group(rows: list[WatchedPartition], waits: list[GroupWait] | None = None, **values: Any) -> WatchedGroup:
    return WatchedGroup("g", "Stable", 1, [], rows, waits or [], {})._replace(**values)


def awaited(name: str, awaited_ms: int = 45_000, wait_left_ms: int | None = 255_000) -> AwaitedMember:
    return AwaitedMember(f"{name}-6a1", name, "10.0.0.1", awaited_ms, wait_left_ms)


def test_no_reason_is_given_for_a_group_that_catches_up() -> None:
    assert reasons(group([row(0)])) == []


def test_a_slow_member_is_named_once_for_all_its_partitions() -> None:
    (reason,) = reasons(group([row(2, read_rate=1.0), row(0, read_rate=2.0)]))
    assert (reason.level, reason.text) == (
        "warning",
        "app-1 falls behind: reads 3 records/s, 20 are written, in t partitions 0, 2.",
    )


def test_a_member_that_is_hardly_behind_is_not_named() -> None:
    assert reasons(group([row(0, read_rate=9.0, lag_s=2.0), row(1, read_rate=9.0, lag_s=0.5)])) == []


def test_a_member_without_progress_is_reported_as_an_error() -> None:
    (reason,) = reasons(group([row(0, read_rate=0.0)]))
    assert reason.level == "error" and "app-1 makes no progress" in reason.text and "10.0.0.1" in reason.todo


def test_the_advice_for_a_group_without_members_is_to_start_consumers() -> None:
    found = reasons(group([row(0, member=None, client_id=None)], members=0, state="Empty"))
    assert [reason.todo for reason in found] == ["Start its consumers."]


def test_a_partition_without_a_reader_is_named() -> None:
    (reason,) = reasons(group([row(0, member=None, client_id=None), row(1, lag=0)]))
    assert "No member of the group reads t partition 0" in reason.text


def test_a_partition_that_waits_is_not_called_slow() -> None:
    """The reason names the partition that other partitions wait for, and that partition's reader."""
    waits = [wait(5, 1), wait(9, 5)]
    rows = [row(1), row(5, read_rate=0.0), row(9, read_rate=0.0)]
    (reason,) = reasons(group(rows, waits))
    assert reason.text.startswith("t partition 5 waits for 40 records of t partition 1")
    assert "app-1 on 10.0.0.1 reads them. At 20 records/s this takes 2 s." in reason.text
    assert "partition 5 continues by itself" in reason.todo


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "waits for 40 records"),
        ({"committed": 70}, "waits for 20 records"),
        ({"position": None, "committed": 70}, "waits for 20 records"),
        ({"position": None, "committed": None}, "waits for records"),
    ],
)
def test_the_records_left_are_counted_from_the_position_or_the_commit_that_is_ahead(
    values: dict[str, Any], text: str
) -> None:
    (reason,) = reasons(group([row(1), row(5, read_rate=0.0)], [wait(5, 1, **values)]))
    assert text in reason.text
    takes = " At 20 records/s this takes 1 s."
    assert (takes in reason.text) is (values.get("committed") == 70)


def test_a_wait_for_a_partition_without_a_reader_comes_with_advice() -> None:
    (reason,) = reasons(group([row(5, read_rate=0.0)], [wait(5, 1, member=None, client_id=None)]))
    assert reason.level == "error" and "skips the unread 40 records" in reason.todo


def test_one_record_is_written_in_the_singular() -> None:
    (waits,) = reasons(group([row(1), row(5, read_rate=0.0)], [wait(5, 1, position=89)]))
    assert (
        "waits for 1 record of t partition 1, which holds older changes of its keys. app-1 on 10.0.0.1 reads it."
        in (waits.text)
    )
    (unread,) = reasons(group([row(0, member=None, client_id=None, lag=1), row(1, lag=0)]))
    assert unread.text == "No member of the group reads t partition 0: 1 record is left."
    (alone,) = reasons(group([row(0, member=None, client_id=None, lag=1)], members=0, state="Empty"))
    assert alone.text == "No consumer reads: the group has no members, and has 1 record to read."


@pytest.mark.parametrize(("matching", "expected"), [(1, "1 topic"), (1_200, "1,200 topics"), (0, "0 topics")])
def test_a_table_counts_its_rows(matching: int, expected: str) -> None:
    parts: Any = _templates().globals["parts"]
    assert f">{expected}<" in parts.pager("/topics", {}, 1, 1, matching, "topic")


def text_of(part: object) -> str:
    return " ".join(re.sub("<[^>]*>", " ", str(part)).split())


def marked(**to_drain: int | None) -> dict[str, Any]:
    return {"partition": 4, "merged_into": 0, "to_drain": to_drain, "replicas": [1, 2], "isr": [1, 2]}


def test_a_marked_partition_waits_for_groups_that_have_records_of_it_to_read() -> None:
    parts: Any = _templates().globals["parts"]
    assert text_of(parts.drains(marked(billing=0, idle=2))) == "drains into 0 waits for idle : 2 records left"
    assert text_of(parts.drains(marked(billing=1))) == "drains into 0 waits for billing : 1 record left"
    assert text_of(parts.drains(marked(billing=None))) == "drains into 0 waits for billing"
    assert text_of(parts.drains(marked(billing=0, idle=0))) == "drains into 0, read by every group"
    assert text_of(parts.drains(marked())) == "drains into 0"
    behind = {**marked(idle=0), "replicas": [1, 2, 3], "isr": [2]}
    assert text_of(parts.drains(behind)) == "drains into 0, read by every group not in sync: broker 1, 3"


@pytest.mark.parametrize(("share", "shown"), [(0.002, "under 1 %"), (0.01, "1 %"), (0.6, "60 %"), (1.0, "100 %")])
def test_the_share_of_the_hottest_key_is_never_zero(share: float, shown: str) -> None:
    parts: Any = _templates().globals["parts"]
    assert parts.share(share) == shown


@pytest.mark.trio
async def test_offsets_are_reset_for_a_named_group_only() -> None:
    nothing: Any = None
    for query in ("topic=t&to=earliest", "group=&topic=t&to=earliest"):
        with pytest.raises(BadQueryError, match="group is empty: the name of a group is needed"):
            await plan_of_reset(nothing, Query(query), "b:9092")


def test_during_a_rebalance_only_the_rebalance_is_reported() -> None:
    rows = [row(0, member=None, client_id=None)]
    (reason,) = reasons(group(rows, [wait(0, 1, member=None, client_id=None)], state="PreparingRebalance"))
    assert reason.level == "warning" and "rebalances" in reason.text
    assert "a member has not joined again" in reason.todo, "a broker of another project names no member"


def test_a_rebalance_names_the_members_that_have_not_joined_again() -> None:
    (reason,) = reasons(group([], state="PreparingRebalance", awaited_members=[awaited("app-3")]))
    assert reason.level == "error"
    assert "app-3 on 10.0.0.1 has not joined again for 45 s." in reason.text
    assert "Look at app-3 on 10.0.0.1: it still processes records" in reason.todo
    assert "continues when it polls, or without it in 4 min (max.poll.interval.ms" in reason.todo
    many = [awaited(f"app-{n}") for n in range(10)]
    (reason,) = reasons(group([], state="PreparingRebalance", awaited_members=many))
    assert "app-7 on 10.0.0.1 and 2 more have not joined again" in reason.text


def test_a_rebalance_that_has_just_begun_is_only_a_warning() -> None:
    (reason,) = reasons(group([], state="PreparingRebalance", awaited_members=[awaited("app-3", 2_000)]))
    assert reason.level == "warning" and "app-3 on 10.0.0.1 has not joined again for 2 s" in reason.text


def test_more_partitions_are_advised_only_where_there_are_too_few() -> None:
    rows = [row(0, read_rate=1.0), row(1, read_rate=1.0)]
    assert "enough partitions" in reasons(group(rows))[0].todo
    assert "resize the topic" in reasons(group(rows, members=2))[0].todo


def test_a_summary_adds_up_the_lags_and_takes_the_longest_time() -> None:
    found = summary(group([row(0), row(1, lag=7, lag_s=70.0), row(2, lag=None, lag_s=None)], [wait(1, 0)]))
    assert (found.lag, found.lag_s, found.waiting, found.is_measured) == (57, 70.0, 1, True)
    assert not summary(group([row(0, read_rate=None)])).is_measured


@pytest.mark.parametrize(
    ("values", "level", "text"),
    [
        ({"lag": 0, "lag_s": 0.0}, "ok", "has read everything"),
        ({}, "ok", "keeps up, or catches up"),
        ({"read_rate": None, "lag_s": 600.0}, "", "It is behind by 10 min. The reason is not known yet"),
        ({"read_rate": None, "lag_s": None}, "", "It is behind. The reason is not known yet"),
    ],
)
def test_a_group_is_shown_as_healthy_only_if_that_is_known(values: dict[str, Any], level: str, text: str) -> None:
    found = group([row(0, **values)])
    assert reasons(found) == []
    assert verdict(summary(found))[0] == level and text in verdict(summary(found))[1]
    assert verdict(summary(found), "no broker answers")[0] == "", "the totals are out of date"


@pytest.mark.parametrize(
    ("lag", "records", "level", "text"),
    [
        (0, [0], "ok", "has read everything."),
        (0, [7, 0], "", "It has read everything of the partitions with a commit."),
        (0, [None], "", "It has read everything of the partitions with a commit."),
        (None, [7], "", "It has committed no offset"),
    ],
)
def test_a_group_with_unread_partitions_without_a_commit_is_not_called_healthy(
    lag: int | None, records: list[int | None], level: str, text: str
) -> None:
    found = group([row(0, lag=lag, lag_s=None)], uncommitted={("t", 9 + n): one for n, one in enumerate(records)})
    assert verdict(summary(found))[0] == level and text in verdict(summary(found))[1]


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([], None),
        ([0, 0], "2 partitions of its topics have no commit. They hold no records."),
        ([None], "1 partition of its topics has no commit. The number of its records is not known."),
        (
            [3_000, 400],
            "2 partitions of its topics have no commit. They hold 3,400 records. 'To read' does not count them: where a"
            " consumer begins there depends on its auto.offset.reset, which the cluster does not know.",
        ),
        ([1, None, None], "They hold 1 record, without those of 2 that did not answer. 'To read' does not count it:"),
    ],
)
def test_the_partitions_without_a_commit_are_counted_with_their_records(
    records: list[int | None], text: str | None
) -> None:
    found = uncommitted_text(records, "'To read'")
    assert found == text or (found is not None and text is not None and text in found)


def test_the_hottest_key_is_the_most_frequent_of_a_sample() -> None:
    assert hottest([b"a", b"b", b"a", None]) == (b"a", 0.5)
    assert hottest([b"", None]) == (b"", 0.5)
    assert hottest([None, None]) is None and hottest([]) is None


@pytest.mark.parametrize(("key", "name"), [("ü".encode(), "ü"), (b"", None), (b"\xff", None)])
def test_a_hot_key_has_a_name_only_if_it_is_text(key: bytes, name: str | None) -> None:
    found = hottest([key])
    assert found is not None and found.name == name


@pytest.mark.parametrize(("waited_ms", "is_problem"), [(None, False), (9_999, False), (10_000, True)])
def test_a_group_that_a_member_holds_up_is_a_problem_of_the_cluster(waited_ms: int | None, is_problem: bool) -> None:
    member = MemberDescription("m-1", None, "app-3", "/10.0.0.1", (), waited_ms, 60_000)
    found = find_problems(
        cluster(1),
        [],
        {},
        [GroupDescription("g", "PreparingRebalance", "consumer", "range", (member,), Node(1, "h", 1))],
    )
    shown = "Group g gets no records: app-3 on 10.0.0.1 has not joined its rebalance for 10 s."
    assert (shown in [problem.text for problem in found]) is is_problem
