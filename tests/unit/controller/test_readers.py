"""The groups of coordinators' answers, as each decision judges them."""

from __future__ import annotations

import pytest

from anabranch.controller.resize.readers import QUESTIONS_TOGETHER, IncarnationQuestion, requests
from anabranch.ordered_resize.progress import Reader
from anabranch.ordered_resize.reader_answers import (
    ReadingGroup,
    Reports,
    commits_count,
    live_reports_count,
    reader_of,
    wanted_reports_count,
)
from anabranch.protocol.generated.topic_readers import TopicReadersResponseGroup, TopicReadersResponsePartition
from anabranch.protocol.types import TopicPartition


def judged(reports: Reports, *, is_settled: bool = True, **partition: int | bool) -> Reader:
    found = TopicReadersResponsePartition(partition_index=5, committed_offset=40, **partition)
    group = TopicReadersResponseGroup(group_id="g", is_settled=is_settled, partitions=[found])
    return reader_of(ReadingGroup(2, group), reports)


@pytest.mark.parametrize(
    ("reports", "partition", "position", "is_reporting"),
    [
        (wanted_reports_count, {}, 40, False),
        (wanted_reports_count, {"need_position": True}, None, True),
        (wanted_reports_count, {"need_position": True, "position": 39}, 39, True),
        (wanted_reports_count, {"is_reported": True}, 40, False),
        (live_reports_count, {"is_reported": True}, None, True),
        (live_reports_count, {"need_position": True, "position": 39}, 40, False),
        (commits_count, {"is_reported": True, "need_position": True, "position": 39}, 40, False),
    ],
)
def test_a_report_or_the_commit_is_the_position(
    reports: Reports, partition: dict[str, int | bool], position: int | None, is_reporting: bool
) -> None:
    reader = judged(reports, **partition)
    assert (reader.positions.get(5), 5 in reader.reporting, reader.commits) == (position, is_reporting, {5: 40})


def test_in_a_rebalance_no_report_counts() -> None:
    reader = judged(wanted_reports_count, is_settled=False, need_position=True, position=39)
    assert (reader.is_settled, reader.positions, reader.reporting) == (False, {5: 40}, frozenset())


def test_a_request_has_whole_topics_and_a_bounded_number_of_questions() -> None:
    """A group's positions in one topic come from one answer."""
    sizes = {"a": QUESTIONS_TOGETHER + 5, "b": 600, "c": 400, "d": 1}
    questions = [
        IncarnationQuestion(TopicPartition(name, p), 9, 40) for name, size in sizes.items() for p in range(size)
    ]
    found = [[(topic.name, len(topic.questions)) for topic in request.topics] for request in requests(questions, {"g"})]
    assert found == [[("a", QUESTIONS_TOGETHER + 5)], [("b", 600), ("c", 400)], [("d", 1)]]


def test_a_decision_about_one_partition_reads_only_this_partition() -> None:
    """A round decides about each marked partition, and each answer has all of them."""
    found = [TopicReadersResponsePartition(partition_index=index, committed_offset=40 + index) for index in range(3)]
    group = ReadingGroup(2, TopicReadersResponseGroup(group_id="g", is_settled=True, partitions=found))
    assert reader_of(group, live_reports_count, only=1).commits == {1: 41}
    assert reader_of(group, live_reports_count, only=7).commits == {}
