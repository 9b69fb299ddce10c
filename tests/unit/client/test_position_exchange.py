"""A member's polls for positions against a scripted coordinator: parked polls, reports, and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ErrorCode, KafkaError, error_for
from anabranch.client.net.connections import GROUP, POSITIONS
from anabranch.client.ordered_delivery.positions_task import AnsweredPosition, PositionAnswer, PositionExchange
from anabranch.protocol.generated.consumer_group_position import ConsumerGroupPositionResponse
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.signal import Signal
from tests.support.protocol.messages import by_partition
from tests.support.resize.layouts import tp


class Coordinator:
    """Parks the polls of the connection POSITIONS until ``release``. ``errors`` are returned first."""

    group_id = "g"

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.errors: list[ErrorCode] = []
        self.positions: dict[int, int] = {}
        self.to_report: dict[int, int] = {}
        self.is_parked = False
        self.released = anyio.Event()
        self.answers_parked = True
        self.settled_generation = 3
        self.member_id = "m"
        self.refused: list[tuple[ErrorCode, int]] = []
        self.pauses = 0
        self.has_long_pauses = False
        self.epoch = 5
        self.answers_made = 0

    def on_position_error(self, error: KafkaError, generation_id: int) -> None:
        self.refused.append((error.code, generation_id))
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.settled_generation = -1

    async def pause(self, attempt: int, until: Signal) -> None:
        self.pauses += 1
        await (until.wait() if self.has_long_pauses else anyio.lowlevel.checkpoint())

    async def request(self, body: Any, *, purpose: str, timeout_ms: float) -> ConsumerGroupPositionResponse:
        self.seen.append((purpose, body))
        if self.errors:
            error = self.errors.pop(0)
            if error is ErrorCode.UNSUPPORTED_VERSION:
                raise error_for(error)
            return ConsumerGroupPositionResponse(error_code=error)
        answer = self.answer(body)
        if purpose == GROUP and self.answers_parked:
            self.release()
        if purpose == POSITIONS:
            assert body.max_wait_ms > 0
            self.is_parked = True
            await self.released.wait()
        else:
            assert body.max_wait_ms == 0
            await anyio.lowlevel.checkpoint()
        return answer

    def answer(self, body: Any) -> ConsumerGroupPositionResponse:
        wanted = {p.partition_index: p for t in body.topics for p in t.partitions if p.need_position}
        partitions = {
            p: {
                "incarnation": 100 + p,
                "need_position": p in self.to_report,
                "position": self.positions.get(p, self.to_report.get(p, -1)),
            }
            for p in sorted({*wanted, *self.to_report})
        }
        self.answers_made += 1
        return by_partition(
            ConsumerGroupPositionResponse,
            {"t": partitions} if partitions else {},
            coordinator_epoch=self.epoch,
            answer_number=self.answers_made,
        )

    def release(self) -> None:
        released, self.released, self.is_parked = self.released, anyio.Event(), False
        released.set()

    def bodies(self, purpose: str) -> list[Any]:
        return [body for sent, body in self.seen if sent == purpose]


class Fixture:
    def __init__(self, coordinator: Coordinator, retry_backoff_ms: int) -> None:
        self.coordinator = coordinator
        self.answers: list[PositionAnswer] = []
        self.generations = 0
        scripted: Any = coordinator
        config = ConsumerConfig.parse({"group_id": "g", "retry_backoff_ms": retry_backoff_ms})
        self.exchange = PositionExchange(config, scripted, scripted, self.began, self.answers.append)

    def began(self) -> None:
        self.generations += 1


@asynccontextmanager
async def exchanging(coordinator: Coordinator, retry_backoff_ms: int = 5) -> AsyncIterator[Fixture]:
    fixture = Fixture(coordinator, retry_backoff_ms)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fixture.exchange.run_news)
        tasks.start_soon(fixture.exchange.run_parked)
        yield fixture
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def parked(
    coordinator: Coordinator, wanted: dict[TopicPartition, int] | None = None, retry_backoff_ms: int = 5
) -> AsyncIterator[Fixture]:
    """An exchange that wants these positions, and whose poll is parked."""
    async with exchanging(coordinator, retry_backoff_ms) as fixture:
        fixture.exchange.want(wanted or {}, {})
        fixture.exchange.settle()
        await until(lambda: coordinator.is_parked)
        yield fixture


async def until(condition: Any) -> None:
    while not condition():
        await anyio.sleep(0.001)  # polls: until the exchange's tasks have done their part


def wants(body: Any) -> dict[int, int]:
    return {p.partition_index: p.incarnation for t in body.topics for p in t.partitions if p.need_position}


def awaited(body: Any) -> dict[int, int]:
    return {p.partition_index: p.awaited_until for t in body.topics for p in t.partitions if p.awaited_until >= 0}


def reports(body: Any) -> dict[int, int]:
    return {p.partition_index: p.position for t in body.topics for p in t.partitions if p.position >= 0}


async def test_a_member_does_not_poll_before_its_assignment_is_settled() -> None:
    """The first poll of a generation tells the coordinator that the member gave up its earlier partitions."""
    coordinator = Coordinator()
    async with exchanging(coordinator) as fixture:
        fixture.exchange.want({tp(1): 101}, {})
        await anyio.wait_all_tasks_blocked()
        assert not coordinator.seen
        fixture.exchange.settle()
        await until(lambda: coordinator.is_parked)
        purposes = [purpose for purpose, _ in coordinator.seen]
        assert purposes == [GROUP, POSITIONS] and fixture.generations == 1
        assert [wants(body) for _, body in coordinator.seen] == [{1: 101}, {1: 101}]
        assert {(b.generation_id, b.member_id) for _, b in coordinator.seen} == {(3, "m")}
        assert [body.poll_number for _, body in coordinator.seen] == [1, 2]


async def test_polls_name_the_awaited_offsets_and_a_change_is_sent_at_once() -> None:
    coordinator = Coordinator()
    async with parked(coordinator, {tp(1): 101, tp(2): 102}) as fixture:
        fixture.exchange.want({tp(1): 101, tp(2): 102}, {tp(1): 50})
        await until(lambda: awaited(coordinator.seen[-1][1]) == {1: 50} and coordinator.is_parked)
        assert [awaited(body) for body in coordinator.bodies(GROUP)] == [{}, {1: 50}]


async def test_a_report_is_sent_at_once_beside_the_parked_poll_and_only_once() -> None:
    coordinator = Coordinator()
    async with parked(coordinator) as fixture:
        fixture.exchange.report({tp(0): AnsweredPosition(100, 7)}, 1)
        await until(lambda: any(reports(body) for body in coordinator.bodies(GROUP)))
        await until(lambda: coordinator.is_parked)
        await anyio.wait_all_tasks_blocked()
        reported = [reports(body) for _, body in coordinator.seen if reports(body)]
        assert reported[0] == {0: 7}
        before = len(coordinator.seen)
        fixture.exchange.want({tp(1): 101}, {})
        await until(lambda: len(coordinator.seen) > before)
        assert not any(reports(body) for _, body in coordinator.seen[before:])


async def test_a_parked_poll_that_is_answered_brings_the_position() -> None:
    coordinator = Coordinator()
    async with parked(coordinator, {tp(1): 101}) as fixture:
        coordinator.positions[1] = 100
        coordinator.to_report[0] = -1
        coordinator.release()  # the answer has the positions known when the poll was parked
        await until(lambda: coordinator.is_parked)
        coordinator.release()
        await until(lambda: fixture.answers[-1].to_report)
        assert fixture.answers[-1].wanted[tp(1)] == AnsweredPosition(101, 100)
        assert fixture.answers[-1].to_report == {tp(0): AnsweredPosition(100, -1)}


async def test_a_position_reported_with_a_commit_is_not_reported_again() -> None:
    """A refused older report is not repeated either, because the repetition could arrive last."""
    coordinator = Coordinator()
    async with parked(coordinator) as fixture:
        before = len(coordinator.seen)
        coordinator.errors, coordinator.has_long_pauses = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS], True
        fixture.exchange.report({tp(0): AnsweredPosition(100, 7), tp(1): AnsweredPosition(101, 8)}, 1)
        await until(lambda: coordinator.refused)
        fixture.exchange.report({tp(0): AnsweredPosition(100, 9)}, 2, known_to_coordinator={tp(0)})
        fixture.exchange._began.set()
        await until(lambda: len(fixture.answers) > 1)
        refused, *reported = [reports(body) for _, body in coordinator.seen[before:]]
        assert refused == {0: 7, 1: 8} and {1: 8} in reported
        assert not any(0 in positions for positions in reported)
        assert fixture.answers[-1].report_number == 2


class ReadsLate(Coordinator):
    """Answers the parked poll and the report together.

    The client reads the response to the parked poll first, and parks a new poll.
    """

    async def request(self, body: Any, *, purpose: str, timeout_ms: float) -> ConsumerGroupPositionResponse:
        if purpose != GROUP or not (self.is_parked and self.answers_parked):
            return await super().request(body, purpose=purpose, timeout_ms=timeout_ms)
        self.seen.append((purpose, body))
        answer = self.answer(body)
        self.release()
        await until(lambda: self.is_parked)
        return answer


async def test_a_position_reported_with_a_commit_is_repeated_behind_an_older_report_in_flight() -> None:
    """The parked poll has the older report and may arrive last. The coordinator then keeps the older position."""
    coordinator = ReadsLate()
    async with parked(coordinator) as fixture:
        fixture.exchange.report({tp(0): AnsweredPosition(100, 7)}, 1)
        await until(lambda: any(reports(body) for body in coordinator.bodies(POSITIONS)))
        await anyio.wait_all_tasks_blocked()
        assert reports(coordinator.bodies(POSITIONS)[-1]) == {0: 7}
        before = len(coordinator.seen)
        fixture.exchange.report({tp(0): AnsweredPosition(100, 9)}, 2, known_to_coordinator={tp(0)})
        await until(lambda: len(coordinator.seen) > before)
        assert reports(coordinator.seen[before][1]) == {0: 9}


class AnswersWhenReleased(Coordinator):
    """Creates the response to a parked poll when the poll is released, as the real coordinator does."""

    async def request(self, body: Any, *, purpose: str, timeout_ms: float) -> ConsumerGroupPositionResponse:
        await super().request(body, purpose=purpose, timeout_ms=timeout_ms)
        return self.answer(body)


async def test_a_response_that_was_made_last_is_applied_although_its_poll_left_first() -> None:
    """The parked poll arrived after the newer poll. The coordinator sends a rewind only to the parked poll."""
    coordinator = AnswersWhenReleased()
    coordinator.positions[1] = 40
    async with parked(coordinator, {tp(1): 101}, retry_backoff_ms=600_000) as fixture:
        coordinator.answers_parked = False
        coordinator.positions[1] = 100
        fixture.exchange.report({tp(0): AnsweredPosition(100, 7)}, 1)
        await until(lambda: fixture.answers[-1].wanted[tp(1)].position == 100)
        coordinator.answers_parked = True
        coordinator.positions[1] = 50
        coordinator.release()
        await until(lambda: fixture.answers[-1].wanted[tp(1)].position == 50)


class SendsLate(Coordinator):
    """Creates the response to a report at once, and sends it when ``sends`` is set. ``changed`` edits each response."""

    def __init__(self) -> None:
        super().__init__()
        self.sends = anyio.Event()
        self.sends.set()

    def changed(self, answer: ConsumerGroupPositionResponse) -> ConsumerGroupPositionResponse:
        return answer

    async def request(self, body: Any, *, purpose: str, timeout_ms: float) -> ConsumerGroupPositionResponse:
        answer = await super().request(body, purpose=purpose, timeout_ms=timeout_ms)
        if purpose == POSITIONS:
            return self.changed(self.answer(body))
        await self.sends.wait()
        return self.changed(answer)


class WithoutNumbers(SendsLate):
    """A coordinator of a release without the tags."""

    def changed(self, answer: ConsumerGroupPositionResponse) -> ConsumerGroupPositionResponse:
        answer.coordinator_epoch = answer.answer_number = -1
        return answer


async def positions_of_crossed_answers(coordinator: SendsLate, change: Callable[[], None]) -> list[AnsweredPosition]:
    """Return the positions that a member uses after ``change``.

    The response to the newest poll is created before the change, and arrives last. The parked poll is answered in
    between.
    """
    coordinator.positions[1] = 100
    async with parked(coordinator, {tp(1): 101}, retry_backoff_ms=600_000) as fixture:
        coordinator.answers_parked, coordinator.sends = False, anyio.Event()
        fixture.exchange.report({tp(0): AnsweredPosition(100, 7)}, 1)
        await until(lambda: len(coordinator.bodies(GROUP)) == 2)
        before = len(fixture.answers)
        change()
        coordinator.release()
        await anyio.wait_all_tasks_blocked()
        assert len(fixture.answers) > before
        coordinator.sends.set()
        await anyio.wait_all_tasks_blocked()
        return [answer.wanted[tp(1)] for answer in fixture.answers[before:] if tp(1) in answer.wanted]


async def test_an_answer_made_before_one_that_was_taken_in_is_dropped() -> None:
    """If the older answer were applied, the member would forget the newer one's rewind (Loads.tla: newest_answer)."""
    coordinator = SendsLate()

    def rewind() -> None:
        coordinator.positions[1] = 50

    assert await positions_of_crossed_answers(coordinator, rewind) == [AnsweredPosition(101, 50)]


async def test_an_answer_of_the_next_coordinator_is_newer() -> None:
    """The next coordinator has a higher leader epoch, and numbers its answers from the beginning again."""
    coordinator = SendsLate()

    def fail_over() -> None:
        coordinator.positions[1] = 50
        coordinator.epoch, coordinator.answers_made = 6, 0

    assert await positions_of_crossed_answers(coordinator, fail_over) == [AnsweredPosition(101, 50)]


async def test_answers_of_a_release_without_numbers_are_ordered_by_their_polls() -> None:
    coordinator = WithoutNumbers()

    def advance() -> None:
        coordinator.positions[1] = 150

    assert (await positions_of_crossed_answers(coordinator, advance))[-1] == AnsweredPosition(101, 100)


async def test_a_newer_poll_is_repeated_while_an_older_one_stays_parked() -> None:
    """The older poll was parked after the newer poll, so the coordinator would use the older poll's requests."""
    coordinator = Coordinator()
    async with parked(coordinator) as fixture:
        coordinator.answers_parked = False
        before = len(coordinator.bodies(GROUP))
        fixture.exchange.want({tp(1): 101}, {})
        await until(lambda: len(coordinator.bodies(GROUP)) >= before + 2)
        coordinator.answers_parked = True
        await until(lambda: wants(coordinator.bodies(POSITIONS)[-1]) == {1: 101})


@pytest.mark.parametrize(
    "error", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
)
async def test_errors_of_polls_are_handled_like_those_of_heartbeats(error: ErrorCode) -> None:
    coordinator = Coordinator()
    coordinator.errors = [error]
    async with exchanging(coordinator) as fixture:
        fixture.exchange.settle()
        await until(lambda: coordinator.refused)
        assert coordinator.refused == [(error, 3)]
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            await anyio.wait_all_tasks_blocked()
            assert len(coordinator.seen) == 1
            coordinator.settled_generation = 4
            fixture.exchange.settle()
        await until(lambda: coordinator.is_parked)
        assert fixture.generations == (2 if error is ErrorCode.REBALANCE_IN_PROGRESS else 1)


async def test_after_a_parked_poll_fails_the_next_poll_is_answered_at_once() -> None:
    coordinator = Coordinator()
    async with parked(coordinator):
        coordinator.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        coordinator.release()
        await until(lambda: coordinator.refused)
        await until(lambda: coordinator.is_parked)
        assert [purpose for purpose, _ in coordinator.seen][-2:] == [GROUP, POSITIONS]


@pytest.mark.parametrize("is_parked", [True, False])
async def test_a_pause_after_a_refusal_ends_with_the_generation(is_parked: bool) -> None:
    """A rebalance refuses the polls with error 27.

    The next generation's polls do not wait for the end of the backoff.
    """
    coordinator = Coordinator()
    coordinator.has_long_pauses = True
    if not is_parked:
        coordinator.errors = [ErrorCode.REBALANCE_IN_PROGRESS]
    async with exchanging(coordinator) as fixture:
        fixture.exchange.settle()
        if is_parked:
            await until(lambda: coordinator.is_parked)
            coordinator.errors = [ErrorCode.REBALANCE_IN_PROGRESS]
            coordinator.release()
        await until(lambda: coordinator.pauses)
        before = len(coordinator.seen)
        await anyio.wait_all_tasks_blocked()
        assert len(coordinator.seen) == before
        coordinator.settled_generation = 4
        fixture.exchange.settle()
        await until(lambda: coordinator.is_parked)
        assert [(p, b.generation_id) for p, b in coordinator.seen[before:]] == [(GROUP, 4), (POSITIONS, 4)]


async def test_a_broker_without_the_api_is_asked_once_per_generation() -> None:
    coordinator = Coordinator()
    coordinator.errors = [ErrorCode.UNSUPPORTED_VERSION]
    async with exchanging(coordinator) as fixture:
        fixture.exchange.settle()
        await until(lambda: coordinator.seen)
        await anyio.wait_all_tasks_blocked()
        assert len(coordinator.seen) == 1 and not coordinator.refused


async def test_a_member_stays_in_its_group_when_the_cluster_stops_accepting_polls() -> None:
    """KIP-584: group_coordinator is lowered to level 1 while a poll is parked."""
    coordinator = Coordinator()
    async with parked(coordinator) as fixture:
        coordinator.errors = [ErrorCode.UNSUPPORTED_VERSION] * 2
        coordinator.release()
        await until(lambda: not coordinator.errors)
        await anyio.wait_all_tasks_blocked()
        assert not coordinator.refused and not fixture.exchange.is_understood()
        assert [purpose for purpose, _ in coordinator.seen] == [GROUP, POSITIONS, POSITIONS, GROUP]


async def test_a_member_that_waits_polls_until_the_cluster_accepts_polls_again() -> None:
    """KIP-584: group_coordinator is lowered by force although a topic was resized, and is raised again."""
    coordinator = Coordinator()
    coordinator.errors = [ErrorCode.UNSUPPORTED_VERSION] * 3
    async with parked(coordinator, {tp(1): 101}) as fixture:
        assert not coordinator.refused and coordinator.pauses == 3
        assert fixture.exchange.is_understood() and fixture.answers


async def test_a_response_of_an_earlier_generation_is_ignored() -> None:
    coordinator = Coordinator()
    coordinator.positions[1] = 100
    async with parked(coordinator, {tp(1): 101}) as fixture:
        taken = len(fixture.answers)
        coordinator.settled_generation = 4
        coordinator.release()
        await anyio.wait_all_tasks_blocked()
        assert len(fixture.answers) == taken
