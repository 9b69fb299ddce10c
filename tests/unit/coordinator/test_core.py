"""Small rules of the pure core: placement, the state table, versions, hand-over, purity."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from anabranch.broker import coordinator
from anabranch.broker.coordinator import admin, readers
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import VALID_PREVIOUS_STATES, GroupState
from anabranch.broker.coordinator.membership import release_groups
from anabranch.broker.coordinator.placement import java_string_hash, kafka_abs, partition_for
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.describe_groups import DescribeGroupsResponse
from anabranch.protocol.generated.topic_readers import TopicReadersRequestTopic
from anabranch.protocol.subscriptions import subscribed_topics
from anabranch.protocol.transitions import IllegalTransitionError
from anabranch.zk_schemas.broker_keys import BrokerKeys
from tests.unit.coordinator.driver import GROUP, Driver, subscription
from tests.unit.coordinator.fakes import EveryTopic

SHELL = {"sweeps.py", "service.py", "leadership.py", "loader.py", "loaded_partition.py", "timer.py"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("group", 98629247),
        ("hello world", 1794106052),
        ("polygenelubricants", -(1 << 31)),
        ("é", 233),
        ("\U0001f600", 1772899),  # two UTF-16 code units: 0xD83D * 31 + 0xDE00
    ],
)
def test_the_hash_of_a_group_id_is_that_of_a_java_string(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_kafkas_abs_of_the_smallest_integer_is_zero() -> None:
    assert kafka_abs(-(1 << 31)) == 0
    assert kafka_abs(-5) == kafka_abs(5) == 5
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello world", 50) == 1794106052 % 50


def test_the_state_table_allows_only_kafkas_transitions() -> None:
    allowed = {(s.value, t.value) for t, sources in VALID_PREVIOUS_STATES.items() for s in sources}
    assert allowed - {(s.value, "Dead") for s in GroupState} == {
        ("Empty", "PreparingRebalance"),
        ("Stable", "PreparingRebalance"),
        ("CompletingRebalance", "PreparingRebalance"),
        ("PreparingRebalance", "CompletingRebalance"),
        ("PreparingRebalance", "Empty"),
        ("CompletingRebalance", "Stable"),
    }


def test_a_transition_outside_of_the_state_table_raises() -> None:
    group = Group("g")
    with pytest.raises(IllegalTransitionError, match="group 'g' cannot move from Empty to Stable"):
        group.transition_to(GroupState.STABLE, 0)
    assert group.state is GroupState.EMPTY


def test_configuration_is_read_by_kafkas_names() -> None:
    keys = {"group_max_size": 7, "offsets_retention_minutes": 2, "group_initial_rebalance_delay_ms": 0}
    values = BrokerKeys(broker_id=1, zookeeper_connect="z", **keys)
    expected = GroupConfig(max_size=7, offsets_retention_ms=120_000, initial_rebalance_delay_ms=0)
    assert GroupConfig.of(values) == expected


def test_the_protocol_of_a_refused_join_is_empty_and_null_from_version_7() -> None:
    driver = Driver()
    assert driver.replies[driver.join("nobody", v=6)].protocol_name == ""
    assert driver.replies[driver.join("nobody", v=7)].protocol_name is None


def test_join_version_0_uses_the_session_timeout_as_rebalance_timeout() -> None:
    driver = Driver()
    driver.join(v=0, rebalance_ms=-1, session_ms=8_000)
    assert driver.shard.groups["g"].rebalance_timeout_ms == 8_000


def test_sync_version_5_must_name_the_protocol_type_and_the_protocol() -> None:
    driver = Driver()
    (member_id,) = driver.stable_group("a")
    assert driver.error(driver.sync(member_id, 1, v=4, protocol_type=None, protocol=None)) == ErrorCode.NONE
    refused = driver.sync(member_id, 1, v=5, protocol_type=None, protocol=None)
    assert driver.error(refused) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_leave_versions_0_to_2_have_a_top_level_error() -> None:
    driver = Driver()
    (member_id,) = driver.stable_group("a")
    assert driver.leave(("nobody", None), v=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave((member_id, None), v=0).error_code == ErrorCode.NONE


def test_the_protocol_that_most_members_prefer_is_chosen() -> None:
    driver = Driver()
    tokens = [driver.join(protocols=p) for p in (("range", "sticky"), ("sticky", "range"), ("sticky", "range"))]
    driver.advance(9_000)
    assert {driver.replies[token].protocol_name for token in tokens} == {"sticky"}


def test_a_cooperative_group_keeps_its_members_through_two_rebalances() -> None:
    """KIP-429: the second rebalance, in which revoked partitions are assigned, is an ordinary one."""
    driver = Driver()
    (first,) = driver.stable_group("a", protocols=("cooperative-sticky",))
    joining = driver.join(client="b", protocols=("cooperative-sticky",))
    assert driver.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(first, protocols=("cooperative-sticky",))
    second = driver.replies[joining].member_id
    driver.sync(first, 2, {first: b"p0", second: b""}, protocol="cooperative-sticky")
    driver.sync(second, 2, protocol="cooperative-sticky")
    again = driver.join(first, protocols=("cooperative-sticky",), metadata=b"revoked p1")
    driver.join(second, protocols=("cooperative-sticky",))
    assert driver.replies[again].generation_id == 3
    driver.sync(first, 3, {first: b"p0", second: b"p1"}, protocol="cooperative-sticky")
    token = driver.sync(second, 3, protocol="cooperative-sticky")
    assert driver.replies[token].assignment == b"p1"


def test_two_restarts_of_a_static_member_in_a_row_keep_its_assignment() -> None:
    driver = Driver()
    driver.stable_group("a", v=5, instance="i")
    driver.auto_commit = False
    first, second = driver.join(v=5, instance="i"), driver.join(v=5, instance="i")
    assert driver.error(first) == ErrorCode.FENCED_INSTANCE_ID
    driver.settle_all()
    member_id = driver.replies[second].member_id
    token = driver.sync(member_id, 1, v=5, instance="i")
    assert driver.replies[token].assignment == b"i-1"


@pytest.mark.parametrize(("topics", "state"), [(("t",), "Stable"), (("t", "u"), "CompletingRebalance")])
def test_a_static_member_that_restarts_with_other_topics_gets_a_new_assignment(
    topics: tuple[str, ...], state: str
) -> None:
    driver = Driver()
    driver.stable_group("a", v=5, instance="i", topics=("t",))
    joined = driver.replies[driver.join(v=5, instance="i", topics=topics)]
    assert (joined.error_code, driver.state()) == (ErrorCode.NONE, state)


def test_a_loaded_group_above_group_max_size_rebalances_and_shrinks() -> None:
    driver = Driver()
    members = driver.stable_group("a", "b", "c")
    driver.config = GroupConfig(max_size=2)
    successor = driver.restarted()
    assert successor.state() == "PreparingRebalance"
    tokens = [successor.join(member_id) for member_id in members]
    errors = [successor.error(token) for token in tokens]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_a_member_that_never_joined_before_may_wait_five_minutes() -> None:
    driver = Driver()
    members = driver.stable_group("a", session_ms=1_800_000, rebalance_ms=1_800_000)
    waiting = driver.join(client="b")
    driver.advance(299_999)
    assert waiting not in driver.replies
    driver.advance(1)
    assert driver.error(waiting) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(members[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_release_answers_every_waiting_join_and_sync() -> None:
    driver = Driver()
    first, second = driver.join(client="a"), driver.join(client="b")
    driver.advance(6_000)
    syncing = driver.sync(driver.replies[second].member_id, 1)
    joining = driver.join(client="c", group="other")
    turn = driver.turn()
    release_groups(turn, ErrorCode.NOT_COORDINATOR)
    driver.perform(turn.out)
    assert {driver.error(token) for token in (syncing, joining)} == {ErrorCode.NOT_COORDINATOR}
    assert driver.error(driver.join(driver.replies[first].member_id)) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_subscriptions_of_a_newer_version_and_with_trailing_bytes_are_read() -> None:
    blob = subscription("a", "b")
    newer = b"\x00\x09" + blob[2:]
    assert subscribed_topics([blob, blob + b"more"]) == {"a", "b"}
    assert subscribed_topics([newer]) == {"a", "b"}  # the subscription lacks the fields of version 3
    assert subscribed_topics([b""]) is None


def test_decisions_import_neither_the_event_loop_nor_clocks() -> None:
    folder = Path(coordinator.__file__).parent
    forbidden = {"trio", "anyio", "time", "random", "os", "asyncio"}
    for path in folder.glob("*.py"):
        if path.name in SHELL:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {name.split(".")[0] for name in names}, path.name


@pytest.mark.parametrize(
    ("kind", "topics", "is_stable", "may_read"),
    [
        ("consumer", ("t", "other"), True, True),
        ("consumer", ("other",), True, False),
        ("consumer", ("other",), False, True),
        ("connect", (), True, False),
        ("connect", (), False, False),
    ],
)
def test_a_group_may_read_its_topics_and_any_topic_while_it_rebalances(
    kind: str, topics: tuple[str, ...], is_stable: bool, may_read: bool
) -> None:
    driver = Driver()
    driver.join(token="j", topics=topics, protocol_type=kind)
    driver.advance(3_001)
    joined = driver.replies["j"]
    if is_stable:
        driver.sync(joined.member_id, joined.generation_id, {joined.member_id: b""}, protocol_type=kind)
    asked = TopicReadersRequestTopic(name="t")
    found = readers.for_controller(driver.turn(), GROUP, asked, EveryTopic())
    assert (found is not None) == may_read


def test_a_rebalance_names_the_members_that_have_not_joined_again() -> None:
    driver = Driver()
    first, second = driver.stable_group("c1", "c2", rebalance_ms=20_000)

    def awaited(version: int = 5) -> dict[str, tuple[int, int]]:
        response = DescribeGroupsResponse(groups=[admin.describe_group(driver.shard, GROUP, driver.now)])
        read = DescribeGroupsResponse.decode(response.encode(version), version)
        return {m.member_id: (m.awaited_ms, m.wait_left_ms) for m in read.groups[0].members}

    assert awaited() == {first: (-1, -1), second: (-1, -1)}
    driver.join(first, topics=("t", "u"), rebalance_ms=20_000)
    assert driver.state() == "PreparingRebalance"
    driver.advance(4_000)
    assert awaited() == {first: (-1, -1), second: (4_000, 16_000)}
    assert awaited(4) == {first: (-1, -1), second: (-1, -1)}, "librdkafka before 2.2 does not skip tags"
    driver.join(second, topics=("t", "u"), rebalance_ms=20_000)
    assert driver.state() == "CompletingRebalance"
    assert awaited() == {first: (-1, -1), second: (-1, -1)}
