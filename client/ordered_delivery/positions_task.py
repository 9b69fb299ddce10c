"""Exchanges positions between the members of a group: the client side of ConsumerGroupPosition (25300).

One poll is parked at the coordinator. The poll has a connection of its own, because the coordinator reads no other
request from this connection until it answers the poll. News (a position, or a change of the wanted partitions) goes at
once over the group's connection, in a poll that is not parked. The coordinator then answers the parked poll too, and
the next one is parked with the present wanted partitions. Polls on two connections may be processed out of order. So an
answer is dropped if the coordinator made it before an answer that this member already used. News is repeated while an
older poll stays parked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple, Protocol

from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError, error_for
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.net.connections import GROUP, POSITIONS
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionRequestPartition,
    ConsumerGroupPositionRequestTopic,
    ConsumerGroupPositionResponse,
)
from anabranch.protocol.sentinels import NO_GENERATION, NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.signal import Signal


class Membership(Protocol):
    """The facts about this member that the exchange needs."""

    @property
    def settled_generation(self) -> int:
        """The generation whose assignment the user's task has put into force; -1 without such a generation."""

    @property
    def member_id(self) -> str:
        """The member id that the coordinator knows."""

    def on_position_error(self, error: KafkaError, generation_id: int) -> None:
        """React to a refused poll of this generation as to a refused heartbeat."""


class AnsweredPosition(NamedTuple):
    """One partition of an answer or of a report."""

    incarnation: int
    position: int
    rewinds: int = 0
    """In an answer: the number of commits that lowered the group's offset."""


class AnswerTime(NamedTuple):
    """The time of an answer. A later answer of the group's coordinators has a greater time."""

    coordinator_epoch: int
    answer_number: int


class PositionAnswer(NamedTuple):
    """The answer to a poll."""

    wanted: dict[TopicPartition, AnsweredPosition]
    """The group's positions in the wanted partitions; -1 if not known."""
    owned: set[TopicPartition]
    """The wanted partitions whose position is known to a live member only."""
    to_report: dict[TopicPartition, AnsweredPosition]
    """This member's partitions that another member waits for, with the positions that the coordinator knows."""
    report_number: int
    """How many reports this member had made when the poll was sent."""
    made: AnswerTime | None
    """The time of the answer. None if the coordinator's release does not send the time."""


def build_request(
    group_id: str,
    *,
    wants: Mapping[TopicPartition, int],
    reports: Mapping[TopicPartition, AnsweredPosition],
    awaited: Mapping[TopicPartition, int] | None = None,
    generation_id: int = NO_GENERATION,
    member_id: str = "",
    group_instance_id: str | None = None,
    max_wait_ms: int = 0,
    poll_number: int = -1,
) -> ConsumerGroupPositionRequest:
    """A request for positions. By partition, ``wants`` has incarnations and ``awaited`` the offsets to reach.

    Without a member id and generation, the request is that of a client outside the group.
    """
    topics: dict[str, ConsumerGroupPositionRequestTopic] = {}
    for tp in sorted({**wants, **reports}):
        report = reports.get(tp)
        topics.setdefault(tp.topic, ConsumerGroupPositionRequestTopic(name=tp.topic)).partitions.append(
            ConsumerGroupPositionRequestPartition(
                partition_index=tp.partition,
                incarnation=wants[tp] if report is None else report.incarnation,
                need_position=tp in wants,
                position=NO_OFFSET if report is None else report.position,
                awaited_until=NO_OFFSET if awaited is None else awaited.get(tp, NO_OFFSET),
            )
        )
    return ConsumerGroupPositionRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        max_wait_ms=max_wait_ms,
        poll_number=poll_number,
        topics=list(topics.values()),
    )


def read_answer(
    response: ConsumerGroupPositionResponse, wants: Mapping[TopicPartition, int], report_number: int = 0
) -> PositionAnswer:
    """The positions in the response, by partition. Raises the error of the response."""
    if response.error_code:
        raise error_for(response.error_code)
    wanted: dict[TopicPartition, AnsweredPosition] = {}
    owned: set[TopicPartition] = set()
    to_report: dict[TopicPartition, AnsweredPosition] = {}
    for topic in response.topics:
        for p in topic.partitions:
            tp, known = (
                TopicPartition(topic.name, p.partition_index),
                AnsweredPosition(p.incarnation, p.position, p.rewinds),
            )
            if tp in wants:
                wanted[tp] = known
                if p.awaits_report:
                    owned.add(tp)
            if p.need_position:
                to_report[tp] = known
    made = AnswerTime(response.coordinator_epoch, response.answer_number) if response.answer_number >= 0 else None
    return PositionAnswer(wanted, owned, to_report, report_number, made)


class PositionExchange:
    """The polls of one member. ``run_news`` and ``run_parked`` are tasks; the user's task calls the other methods."""

    def __init__(
        self,
        config: ConsumerConfig,
        link: CoordinatorLink,
        membership: Membership,
        on_generation: Callable[[], None],
        on_answer: Callable[[PositionAnswer], None],
    ) -> None:
        self._config = config
        self._link = link
        self._membership = membership
        self._on_generation = on_generation
        self._on_answer = on_answer
        self._generation = NO_GENERATION
        self._wants: dict[TopicPartition, int] = {}
        self._awaited: dict[TopicPartition, int] = {}
        self._unsent_reports: dict[TopicPartition, AnsweredPosition] = {}
        self._report_number = 0
        self._number = 0
        self._taken = 0
        """The poll whose answer was used last."""
        self._taken_made: AnswerTime | None = None
        self._on_its_way: dict[int, dict[TopicPartition, AnsweredPosition]] = {}
        """The reports of each unanswered poll, by the poll's number."""
        self._parked_number = 0
        """The poll that is parked, or sent to be parked; 0 for none."""
        self._is_understood = True
        self._began = Signal()
        """Set when a generation begins. This ends the pauses after refusals in the previous generation."""
        self._news = Signal()
        self._park = Signal()
        self._unparked = Signal()

    # ------------------------------------------------------------ the user's task

    def settle(self) -> None:
        """Begin the polls of a generation whose assignment is in force and whose revoked partitions are given up."""
        generation = self._membership.settled_generation
        if generation == self._generation:
            return
        self._generation = generation
        self._is_understood = True
        self._taken_made = None
        self._unsent_reports = {}
        self._on_generation()
        self._began.set()
        if generation >= 0:
            self._news.set()

    def want(self, wants: dict[TopicPartition, int], awaited: dict[TopicPartition, int]) -> None:
        """Ask for the positions of exactly these partitions, by their incarnations.

        ``awaited`` has the offsets that the group must reach before waiting records are delivered.
        """
        if (wants, awaited) != (self._wants, self._awaited):
            self._wants, self._awaited = wants, awaited
            self._news.set()

    def report(
        self,
        positions: Mapping[TopicPartition, AnsweredPosition],
        report_number: int,
        known_to_coordinator: Container[TopicPartition] = (),
    ) -> None:
        """Report these positions, except those in ``known_to_coordinator``. ``report_number`` counts the reports.

        Exception: a known position is reported again if an older report of the partition is on its way, perhaps on
        another connection, because the older report could arrive last.
        """
        self._report_number = report_number
        for tp, position in positions.items():
            if tp in known_to_coordinator and not any(tp in reports for reports in self._on_its_way.values()):
                self._unsent_reports.pop(tp, None)
            else:
                self._unsent_reports[tp] = position
        if self._unsent_reports:
            self._news.set()

    def is_understood(self) -> bool:
        """Whether the coordinator accepts polls, as far as this member knows."""
        return self._is_understood

    # ------------------------------------------------------------ tasks

    async def run_news(self) -> None:
        """Send news at once. Afterwards a poll is parked."""
        while True:
            await self._news.wait()
            try:
                await self._send_news()
            except ClientClosedError:
                return

    async def _send_news(self) -> None:
        attempt = 0
        while (generation := self._current_generation()) >= 0:
            attempt += 1
            try:
                number = await self._poll(generation, GROUP, 0)
            except KafkaError as error:
                if not self._react_to(error, generation) and not self._wants:
                    return  # this member waits for nothing, and no other member can wait for this one
                await self._pause(generation, attempt)
                if generation == self._generation:
                    continue
                return  # the start of the next generation sets ``_news``
            self._park.set()
            if not 0 < self._parked_number < number:
                return
            await self._unparked.wait(self._config.retry_backoff_ms / 1000)
            if not 0 < self._parked_number < number:
                return

    async def run_parked(self) -> None:
        """Keep one poll parked for as long as there is a generation to poll in."""
        max_wait_ms = self._config.request_timeout_ms // 2
        while True:
            await self._park.wait()
            while (generation := self._current_generation()) >= 0:
                try:
                    await self._poll(generation, POSITIONS, max_wait_ms)
                except KafkaError as error:
                    if not self._react_to(error, generation):
                        self._news.set()
                        break
                    await self._pause(generation, 1)
                    if generation == self._generation:
                        self._news.set()  # the other task asks for everything at once, then a poll is parked again
                    break
                except ClientClosedError:
                    return

    def _react_to(self, error: KafkaError, generation: int) -> bool:
        """Let the member react to a poll's error. Returns False for UNSUPPORTED_VERSION, to which it need not react.

        UNSUPPORTED_VERSION means that the coordinator's release does not know resizes, or that ``group_coordinator`` is
        below level 2 (KIP-584). A member that waits for positions polls until the level is raised again.
        """
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            self._is_understood = False
            return False
        self._membership.on_position_error(error, generation)
        return True

    async def _pause(self, generation: int, attempt: int) -> None:
        """Pause after a refusal, but not longer than the refused generation lasts.

        During a rebalance every poll is refused. A longer pause would hold back the next generation's positions.
        """
        if generation == self._generation:
            self._began.clear()
            await self._link.pause(attempt, self._began)

    def _current_generation(self) -> int:
        generation = self._membership.settled_generation
        return generation if generation == self._generation else NO_GENERATION

    async def _poll(self, generation: int, purpose: str, max_wait_ms: int) -> int:
        """Send one poll. Returns its number."""
        self._number += 1
        number, wants = self._number, self._wants
        reports, report_number = dict(self._unsent_reports), self._report_number
        request = build_request(
            self._link.group_id,
            wants=wants,
            reports=reports,
            awaited=self._awaited,
            generation_id=generation,
            member_id=self._membership.member_id,
            group_instance_id=self._config.group_instance_id,
            max_wait_ms=max_wait_ms,
            poll_number=number,
        )
        self._on_its_way[number] = reports
        if purpose == POSITIONS:
            self._parked_number = number
        try:
            response = await self._link.request(
                request, purpose=purpose, timeout_ms=self._config.request_timeout_ms + max_wait_ms
            )
        finally:
            del self._on_its_way[number]
            if purpose == POSITIONS:
                self._parked_number = 0
                self._unparked.set()
        answer = read_answer(response, wants, report_number)
        self._is_understood = True
        if generation != self._current_generation():
            return number
        for tp, report in reports.items():
            if self._unsent_reports.get(tp) == report:
                del self._unsent_reports[tp]
        if self._is_newer(number, answer.made):
            self._taken, self._taken_made = number, answer.made
            self._on_answer(answer)
        return number

    def _is_newer(self, number: int, made: AnswerTime | None) -> bool:
        """Whether an answer was made after the answer that was used last.

        If ``made`` is None, the number of the poll decides.
        """
        if made is None or self._taken_made is None:
            return number > self._taken
        return made > self._taken_made
