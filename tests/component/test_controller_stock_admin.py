"""Requests of stock clients for a partition count: the controller asks leaders whether the topic has records."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.request_kinds import StockCheck
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize.resize_rules import TOPIC, alter, configure, hold_records, resized

pytestmark = pytest.mark.trio


async def requested(
    cluster: ControllerCluster, count: int, *, validate_only: bool = False, check: StockCheck = StockCheck.RECORDS
) -> tuple[ErrorCode, str]:
    """Request a count. Returns the error and the message."""
    request = alter(count, validate_only=validate_only)
    request.stock_check = check
    result = (await cluster.request(request)).results[0]
    return ErrorCode(result.error_code), result.error_message or ""


async def present_count(cluster: ControllerCluster) -> int:
    return (await cluster.topic(TOPIC)).undeleted_partition_count


@pytest.mark.parametrize("validate_only", [True, False])
async def test_a_topic_with_records_grows_for_stock_clients_only_to_a_doubling(
    cluster: ControllerCluster, validate_only: bool
) -> None:
    """The log end counts, not the high watermark: a record that is not committed yet is a record."""
    hold_records(cluster, range(2, 3), 5, watermark=0)
    code, message = await requested(cluster, 6, validate_only=validate_only)
    assert (code, await present_count(cluster)) == (ErrorCode.POLICY_VIOLATION, 4)
    assert message.startswith("t has records. ")
    for part in ("works is 8", "`anabranch topics alter t --partitions 6`", "ordered.delivery.stock.admin=accept"):
        assert part in message
    assert await requested(cluster, 8, validate_only=validate_only) == (ErrorCode.NONE, "")
    assert await present_count(cluster) == (4 if validate_only else 8)


async def test_a_topic_with_records_never_shrinks_for_stock_clients(cluster: ControllerCluster) -> None:
    await resized(cluster, 8)
    hold_records(cluster, range(1), 5)
    code, message = await requested(cluster, 4)
    assert (code, await present_count(cluster)) == (ErrorCode.POLICY_VIOLATION, 8)
    assert "The topic has 8 partitions." in message


async def test_a_topic_whose_records_have_expired_counts_as_one_with_records(cluster: ControllerCluster) -> None:
    hold_records(cluster, range(4), 5, start=5)
    assert (await requested(cluster, 6))[0] == ErrorCode.POLICY_VIOLATION


async def test_a_topic_in_which_nothing_was_written_gets_any_count(cluster: ControllerCluster) -> None:
    for count in (6, 4):
        assert (await requested(cluster, count))[0] == ErrorCode.NONE
        assert await present_count(cluster) == count


async def test_the_topic_config_and_other_clients_are_not_refused(cluster: ControllerCluster) -> None:
    hold_records(cluster, range(4), 5)
    assert (await requested(cluster, 5, check=StockCheck.NONE))[0] == ErrorCode.NONE
    assert not cluster.brokers[1].sent(ListOffsetsRequest)
    assert await configure(cluster, ordered_delivery_stock_admin="accept") == ErrorCode.NONE
    assert (await requested(cluster, 6))[0] == ErrorCode.NONE
    assert (await requested(cluster, 4))[0] == ErrorCode.NONE
    assert await configure(cluster, ordered_delivery_stock_admin="reject") == ErrorCode.NONE
    assert (await requested(cluster, 5))[0] == ErrorCode.POLICY_VIOLATION


async def test_a_topic_counts_as_one_with_records_while_a_leader_does_not_answer(cluster: ControllerCluster) -> None:
    for broker in cluster.brokers.values():
        broker.errors[TOPIC, 2] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    code, message = await requested(cluster, 6)
    assert (code, await present_count(cluster)) == (ErrorCode.POLICY_VIOLATION, 4)
    assert message.startswith("It is not known whether t has records: the leader of t-2 does not answer.")
    for broker in cluster.brokers.values():
        broker.logs[TOPIC, 3] = Log(1, 1)
    assert (await requested(cluster, 6))[1].startswith("t has records.")


async def test_a_hung_leader_delays_the_refusal_by_a_limit_and_only_this_request(cluster: ControllerCluster) -> None:
    cluster.brokers[1].answering = trio.Event()
    began = trio.current_time()
    assert (await requested(cluster, 8, check=StockCheck.NONE, validate_only=True))[0] == ErrorCode.NONE
    code, message = await requested(cluster, 6)
    assert code == ErrorCode.POLICY_VIOLATION and "It is not known whether t has records" in message
    assert trio.current_time() - began < 10
    cluster.brokers[1].answering.set()


async def test_a_new_controller_asks_when_it_has_loaded_the_cluster(cluster: ControllerCluster) -> None:
    """A broker repeats a request that waits at once, when another controller is in office."""
    cluster.vacate()
    await cluster.start_controller(1001)
    await cluster.until(cluster.active)
    assert await requested(cluster, 6) == (ErrorCode.NONE, "")


async def test_the_end_of_a_term_ends_the_questions(cluster: ControllerCluster) -> None:
    cluster.brokers[1].answering = trio.Event()
    request = alter(6)
    request.stock_check = StockCheck.RECORDS
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            result = (await cluster.request(request, controller_id=1000)).results[0]
            assert result.error_code == ErrorCode.NOT_CONTROLLER
            nursery.cancel_scope.cancel()

        nursery.start_soon(ask)
        await cluster.until(lambda: cluster.brokers[1].sent(ListOffsetsRequest))
        began = trio.current_time()
        await cluster.store.delete(paths.CONTROLLER)
        with trio.fail_after(4):
            await trio.sleep_forever()
    assert trio.current_time() - began < 4
    cluster.brokers[1].answering.set()


async def test_what_was_found_about_a_topic_holds_only_while_the_topic_is_the_same(cluster: ControllerCluster) -> None:
    cluster.brokers[1].answering = trio.Event()
    answers: list[tuple[ErrorCode, str]] = []

    async def ask(count: int, check: StockCheck) -> None:
        answers.append(await requested(cluster, count, check=check))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 6, StockCheck.RECORDS)
        await cluster.until(lambda: cluster.brokers[1].sent(ListOffsetsRequest))
        nursery.start_soon(ask, 8, StockCheck.NONE)

        async def is_begun() -> bool:
            return await present_count(cluster) == 8

        await cluster.until(is_begun)
        cluster.brokers[1].answering.set()
    refused = [message for code, message in answers if code == ErrorCode.POLICY_VIOLATION]
    assert len(refused) == 1 and refused[0].startswith("It is not known whether the topic has records: try again")
    assert await present_count(cluster) == 8


async def test_advice_that_does_not_come_costs_half_of_the_time(cluster: ControllerCluster) -> None:
    """The broker that forwards a request counts the whole time, and would answer with a time-out first."""
    cluster.brokers[1].answering = trio.Event()
    began = trio.current_time()
    request = alter(6, validate_only=True)
    request.stock_check, request.timeout_ms = StockCheck.PRODUCERS, 5000
    result = (await cluster.request(request)).results[0]
    assert (result.error_code, 2 < trio.current_time() - began < 3) == (ErrorCode.NONE, True)
    cluster.brokers[1].answering.set()


async def test_a_dry_run_is_refused_for_recent_stock_producers_only_if_it_asks_for_that(
    cluster: ControllerCluster,
) -> None:
    for count in (6, 8):
        assert (await requested(cluster, count, validate_only=True, check=StockCheck.PRODUCERS))[0] == ErrorCode.NONE
    cluster.brokers[2].stock_producers[TOPIC] = (10, 0)
    code, message = await requested(cluster, 6, validate_only=True, check=StockCheck.PRODUCERS)
    assert code == ErrorCode.POLICY_VIOLATION
    assert "They can follow 4 or 8 partitions." in message and "--force" in message
    code, message = await requested(cluster, 6, validate_only=True, check=StockCheck.NONE)
    assert code == ErrorCode.NONE and "They can follow 4 or 8 partitions." in message
    assert (await requested(cluster, 8, validate_only=True, check=StockCheck.PRODUCERS))[0] == ErrorCode.NONE
