"""The controller's queue of events: possible changes, responses of brokers, requests of clients.

An event that only asks to read something again is in the queue at most once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import trio

from anabranch.controller.image import Leftover, LiveBroker, RetainOrder
from anabranch.controller.request_batch import BrokerRequest
from anabranch.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """``/brokers/ids`` changed."""


@dataclass(frozen=True, slots=True)
class TopicListChanged:
    """``/brokers/topics`` changed."""


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """The znode of a topic changed."""

    name: str


@dataclass(frozen=True, slots=True)
class WatchedStateChanged:
    """A watched state znode changed. The state was malformed or its topic is frozen, and this may be repaired now."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class FirstLeadersDue:
    """Some new partitions have no leaders yet. A limited number of them are to get their first leaders."""


@dataclass(frozen=True, slots=True)
class RemovalDue:
    """The next znodes of a deleted topic are to be removed, up to a limit."""

    name: str


@dataclass(frozen=True, slots=True)
class DeletionsChanged:
    """``/admin/delete_topics`` changed."""


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """``/config/changes`` has another notification."""


@dataclass(frozen=True, slots=True)
class FeaturesChanged:
    """``/features`` changed."""


@dataclass(frozen=True, slots=True)
class FirstLeaderEpochChanged:
    """``/first_leader_epoch`` changed."""


@dataclass(frozen=True, slots=True)
class FeaturesDue:
    """It is time to check whether ``/features`` is missing, or has minimum levels that no live broker supports."""


@dataclass(frozen=True, slots=True)
class LogDirsFailed:
    """``/log_dir_event_notification`` has another notice."""


@dataclass(frozen=True, slots=True)
class LeadersDue:
    """It is time to check whether first replicas should lead again."""


@dataclass(frozen=True, slots=True)
class FirstReplicasDue:
    """These partitions are to be led by their first replica again, up to a limit."""

    tps: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class RefusalsDue:
    """It is time to repeat requests that brokers refused."""


@dataclass(frozen=True, slots=True)
class ReassignmentsDue:
    """Some reassignment may be able to go on."""


@dataclass(frozen=True, slots=True)
class ResizesDue:
    """Some resize may be able to go on."""


@dataclass(frozen=True, slots=True)
class QuestionsDue:
    """It is time to ask leaders again for offsets that they did not know."""


@dataclass(frozen=True, slots=True)
class DrainsDue:
    """It is time to check whether partitions marked for deletion are empty."""


@dataclass(frozen=True, slots=True)
class PartitionProcessed:
    """Every group has processed a marked partition. ``of`` is the partition that was asked about."""

    of: Leftover


@dataclass(frozen=True, slots=True)
class ReplicasBehind:
    """Brokers whose replicas are not in sync kept a leader from deleting the records of a marked partition in time."""

    of: Leftover
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RetainOrdersFound:
    """Leaders are to retain records against retention by time."""

    orders: tuple[RetainOrder, ...]


@dataclass(frozen=True, slots=True)
class AutoscaleDue:
    """It is time to check whether topics need another partition count for their append rate."""


@dataclass(frozen=True, slots=True)
class ReadAgainDue:
    """It is time to read the cluster again, because a step that was given up may succeed now."""


@dataclass(frozen=True, slots=True, eq=False)
class BrokerAnswered:
    """A broker answered a request of this controller."""

    broker: LiveBroker
    request: BrokerRequest
    response: Any


@dataclass(slots=True, eq=False)
class AdminCall:
    """A request from outside. The task of decisions sets ``outcome``, and then ``decided``."""

    api_key: int
    body: Any
    version: int
    decided: trio.Event = field(default_factory=trio.Event)
    outcome: Any = None
    answers: tuple[Any, ...] = ()
    """What brokers answered before the request was decided: the first further arguments of its handler."""
    slices: Any = None
    """The request in slices (``admin/slices.py``); None before the first decision and after the last one."""
    is_given_up: bool = False
    """Whether nobody waits for the answer any more. A request whose first slice is decided is decided to its end."""

    def give_up(self) -> None:
        """Note that nobody waits for the answer, and drop the request if nothing is decided yet."""
        if self.slices is None:
            self.is_given_up, self.body = True, None


Mark: TypeAlias = (
    BrokersChanged
    | TopicListChanged
    | TopicChanged
    | WatchedStateChanged
    | FirstLeadersDue
    | RemovalDue
    | DeletionsChanged
    | ConfigsChanged
    | FeaturesChanged
    | FirstLeaderEpochChanged
    | FeaturesDue
    | LogDirsFailed
    | LeadersDue
    | FirstReplicasDue
    | RefusalsDue
    | ReassignmentsDue
    | ResizesDue
    | QuestionsDue
    | DrainsDue
    | PartitionProcessed
    | ReplicasBehind
    | RetainOrdersFound
    | AutoscaleDue
    | ReadAgainDue
)
Event: TypeAlias = Mark | BrokerAnswered | AdminCall
_URGENT = (BrokersChanged, LogDirsFailed)
"""Events after which partitions may be without a leader."""


class EventQueue:
    """A queue that is first in, first out, except for urgent events.

    Plain calls fill the queue, so a watch callback can add events.
    """

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        """``now`` is the clock that measures how long events wait."""
        self._now = now
        self._put_at: dict[Event, float] = {}
        self._events: deque[Event] = deque()
        self._urgent: deque[Event] = deque()
        self._marks: set[Mark] = set()
        self._watches: dict[Mark, Callable[[], None]] = {}
        self._arrived = trio.Event()
        self._soon = trio.Event()
        self._given_up = trio.Event()
        self.is_steady = False
        """Whether the pauses between reminders are fixed instead of growing. The reminding task resets this value."""

    def put(self, event: Event) -> None:
        if not isinstance(event, BrokerAnswered | AdminCall):
            if event in self._marks:
                return
            self._marks.add(event)
        self._put_at[event] = self._now()
        (self._urgent if isinstance(event, _URGENT) else self._events).append(event)
        self._arrived.set()

    @property
    def size(self) -> int:
        """Number of events in the queue."""
        return len(self._events) + len(self._urgent)

    def waited_s(self, event: Event) -> float:
        """Seconds that an event waited in the queue. Call this once, after the event was taken out."""
        now = self._now()
        return now - self._put_at.pop(event, now)

    def soon(self, *, steadily: bool = False) -> None:
        """Ask for a reminder, because a resize waits for something that no event reports.

        The pause before the reminder grows each time, unless ``steadily`` is true.
        """
        self.is_steady = self.is_steady or steadily
        self._soon.set()

    async def wait_soon(self) -> None:
        """Return once ``soon`` was called."""
        await self._soon.wait()
        self._soon = trio.Event()

    def read_again_later(self) -> None:
        """Ask for the cluster to be read again later, because a step that was given up may succeed then."""
        self._given_up.set()

    async def wait_given_up(self) -> None:
        """Return once ``read_again_later`` was called."""
        await self._given_up.wait()
        self._given_up = trio.Event()

    def watch(self, mark: Mark) -> Callable[[], None]:
        """The one callback that puts ``mark``. It is always the same, so no watch is set twice."""
        return self._watches.setdefault(mark, lambda: self.put(mark))

    def forget_watch(self, mark: Mark) -> None:
        self._watches.pop(mark, None)

    def urgent(self) -> Event | None:
        """Take the oldest urgent event, or None. Call it before each other event."""
        if not self._urgent:
            return None
        event = self._urgent.popleft()
        self._marks.discard(event)
        return event

    async def take_all(self) -> list[Event]:
        """Wait for at least one event, then take all events that are not urgent, the oldest first."""
        while not self._events and not self._urgent:
            self._arrived = trio.Event()
            await self._arrived.wait()
        taken = list(self._events)
        self._events.clear()
        self._marks.difference_update(taken)
        return taken
