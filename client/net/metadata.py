"""Keeps the client's metadata of the cluster up to date: on demand, after errors, every ``metadata_max_age_ms``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import anyio

from anabranch.client.cluster import Cluster, Node, TopicInfo
from anabranch.client.config import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from anabranch.client.errors import (
    ClientClosedError,
    ErrorCode,
    InvalidMetadataError,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
    error_for,
)
from anabranch.client.net import broker_choice
from anabranch.client.net.connections import GENERAL, SILENT_S, Connections, backoff_ms
from anabranch.client.net.troubles import Troubles
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

_log = logging.getLogger(__name__)
_NO_BROKER = "no broker answers"
BEFORE_CONTACT = "before_contact"
"""The attribute of a log record about a lasting problem: whether no broker has ever answered this client."""
_DEFAULT_ADDRESS = (
    f"; {DEFAULT_BOOTSTRAP} is the default address, and bootstrap_servers (--bootstrap-server of a command) or "
    f"{BOOTSTRAP_VARIABLE} names another"
)
_NAMED_PARTITIONS = 10
_LOOK_EVERY_S = 0.5
_TOPIC_ABSENT = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})
_TOPIC_FATAL = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


class AbsentTopicError(InvalidMetadataError):
    """A topic that the client asks for does not exist."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")


class Metadata:
    """The cluster as last described, and the one task that requests metadata.

    The task requests a producer's topics until they are idle, a consumer's topics as long as the subscription lasts, or
    all topics (``all_topics``) for a pattern.
    """

    def __init__(
        self,
        env: Env,
        connections: Connections,
        bootstrap: Iterable[tuple[str, int]],
        *,
        max_age_ms: float,
        layout_backoff_ms: float,
        retry_backoff_ms: float,
        retry_backoff_max_ms: float,
        allow_auto_create: bool,
        topic_idle_ms: float = float("inf"),
    ) -> None:
        self._env = env
        self._connections = connections
        self._bootstrap = [Node(-2 - index, host, port) for index, (host, port) in enumerate(bootstrap)]
        self._max_age_ms = max_age_ms
        self._layout_backoff_ms = layout_backoff_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._allow_auto_create = allow_auto_create
        self._topic_idle_ms = topic_idle_ms
        self._topics: dict[str, float] = {}
        self.all_topics = False
        self.knows_all_topics = False
        """Whether the last response was about all topics."""
        self.cluster = Cluster()
        self.generation = 0
        """Number of refreshes so far, including failed ones."""
        self.failure: KafkaError | None = None
        """The error of the last refresh; None if it succeeded."""
        self._asked = Signal()
        self._hurried = Signal()
        self._updated = anyio.Event()
        self._closed_because: ClientClosedError | None = None
        self._asking_since: float | None = None
        """The start of the first refresh without a response; None if the last refresh had a response."""
        self._silent_since: float | None = None
        """The start of the time in which no broker has answered; None if a broker answers."""
        self._changed = Signal()
        self._told_before_contact = False
        """Whether the last report that no broker answers came before the first answer."""
        self._troubles = Troubles()
        self._topic_troubles: dict[str, str] = {}
        """The topic of each problem of the last look that is one of a topic."""
        self._told_absent: set[str] = set()
        """The topics of which ``tell_absent`` has raised that they do not exist."""
        self._told_generation = -1
        self._listeners: list[Callable[[], None]] = []

    # ------------------------------------------------------------ wants

    def want(self, topic: str) -> None:
        """Include ``topic`` in every refresh from now on."""
        if topic not in self._topics:
            self.request_update()
        self._topics[topic] = self._env.clock.monotonic()

    def ensure(self, topic: str) -> None:
        """Include ``topic`` in every refresh from now on, unless ``topic`` or all topics are included already."""
        if not self.all_topics and topic not in self._topics:
            self.want(topic)

    def touch(self, topic: str, now: float) -> None:
        """Note that a topic was used at ``now``. A topic is requested until it has been idle for long enough."""
        self._topics[topic] = now

    def want_only(self, topics: Iterable[str]) -> None:
        """Request exactly ``topics`` from now on, and at once if some of them are new."""
        now = self._env.clock.monotonic()
        wanted = dict.fromkeys(topics, now)
        new = wanted.keys() - self._topics.keys()
        self._topics = wanted
        if new:
            self.request_update()

    def on_update(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each refresh, even a failed one."""
        self._listeners.append(listener)

    def request_update(self) -> None:
        """Request a refresh soon. All calls before the refresh count as one call."""
        self._asked.set()

    def hurry_update(self) -> None:
        """Request a refresh without the pause after the last refresh: for callers that pause by themselves."""
        self._asked.set()
        self._hurried.set()

    # ------------------------------------------------------------ nodes

    def node(self, node_id: int) -> Node | None:
        return self.cluster.nodes.get(node_id)

    def leader(self, tp: TopicPartition) -> Node | None:
        """The leader of a partition; None if there is no leader or the leader is unknown."""
        return self.cluster.nodes.get(self.cluster.leader(tp))

    def any_node(self, purpose: str = GENERAL) -> Node:
        """The least loaded broker; before the first response, or if all known brokers fail, a bootstrap server."""
        known = list(self.cluster.nodes.values())
        return broker_choice.choose(
            known, self._bootstrap, lambda node: self._connections.load(node, purpose), self._env.rng
        )

    # ------------------------------------------------------------ refreshing

    async def run(self) -> None:
        """Refresh until the client is closed, and log lasting problems."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            await self._refresh_on_demand()
            tasks.cancel_scope.cancel()

    async def _refresh_on_demand(self) -> None:
        attempt, first_ms, hurried = 0, self._retry_backoff_ms, False
        while True:
            if attempt == 0:
                await self._asked.wait(self._max_age_ms / 1000)
            self._hurried.clear()
            known = self._layouts()
            try:
                await self.refresh()
                if not self._incomplete():
                    attempt, first_ms = 0, self._retry_backoff_ms
                elif any(version > known.get(name, version) for name, version in self._layouts().items()):
                    # The controller elects the leaders that are missing, which takes a few round trips.
                    attempt, first_ms = 1, self._layout_backoff_ms
                else:
                    attempt = max(1, attempt + (not hurried))
            except ClientClosedError:
                return
            except KafkaError as error:
                self.failure = error
                self._announce()
                attempt += 1
            pause_ms = backoff_ms(max(attempt, 1), first_ms, self._retry_backoff_max_ms, self._env.rng.random())
            hurried = await self._hurried.wait(pause_ms / 1000)

    def _layouts(self) -> dict[str, int]:
        """The layout versions of the wanted topics that are known."""
        topics = self.cluster.topics
        return {name: topics[name].layout_version for name in self._topics if name in topics}

    def _incomplete(self) -> bool:
        """Whether a wanted topic is missing or a partition has no leader, so that another refresh may help."""
        for name in self._topics:
            topic = self.cluster.topics.get(name)
            if topic is None:
                return True
            if topic.error.retriable or any(p.leader < 0 for p in topic.partitions.values()):
                return True
        return False

    async def refresh(self) -> None:
        """Ask one broker once, and merge its response."""
        self._forget_idle_topics()
        names = None if self.all_topics else sorted(self._topics)
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        if self._asking_since is None:
            self._asking_since = self._env.clock.monotonic()
            self._changed.set()
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._allow_auto_create)
        response: MetadataResponse = await self._connections.request(self.any_node(), request)
        if not response.brokers:
            raise error_for(ErrorCode.BROKER_NOT_AVAILABLE, "the Metadata response names no broker")
        # Topics wanted since the request left were not requested: their known metadata stays.
        self.cluster = self.cluster.merge(response, None if names is None else self._topics)
        self.knows_all_topics = names is None
        self.failure = None
        self._asking_since = None
        if names is not None and not set(self._topics) <= set(names):
            self.request_update()
        self._announce()

    def _forget_idle_topics(self) -> None:
        oldest = self._env.clock.monotonic() - self._topic_idle_ms / 1000
        self._topics = {name: used for name, used in self._topics.items() if used >= oldest}

    # ------------------------------------------------------------ lasting problems

    def tell_absent(self) -> None:
        """Raise ``AbsentTopicError`` for a topic that is asked for and does not exist: once, until the topic exists."""
        if self._told_generation == self.generation:
            return
        absent = {name for name in self._topics if self._is_absent(name)}
        self._told_absent &= absent
        for name in sorted(absent - self._told_absent):
            self._told_absent.add(name)
            raise AbsentTopicError(name)
        self._told_generation = self.generation

    def _is_absent(self, name: str) -> bool:
        topic = self.cluster.topics.get(name)
        return topic is not None and not topic.partitions and topic.error in _TOPIC_ABSENT

    @property
    def address_hint(self) -> str:
        """The end of an error message if no broker has answered yet and the only address is the default one."""
        at_default = [str(node) for node in self._bootstrap] == [DEFAULT_BOOTSTRAP]
        return _DEFAULT_ADDRESS if at_default and not self.cluster.nodes else ""

    @property
    def silence(self) -> str | None:
        """The problem if no broker answers, for an error message; None if a broker answers."""
        return None if self._asking_since is None else self._silence()

    def silence_of(self, least_s: float) -> str | None:
        """The problem if no broker has answered for ``least_s``. Otherwise, or if no response is due: None."""
        since = self._look_for_silence()
        if since is None or self._env.clock.monotonic() - since < least_s:
            return None
        return self._silence()

    def _silence(self) -> str:
        nodes = [str(node) for node in self.cluster.nodes.values() or self._bootstrap]
        unanswered = self._connections.unanswered()
        if len(nodes) > 1 and self.failure is None and unanswered is not None:
            return unanswered.what  # perhaps no other broker was asked since
        why = self.failure.message if self.failure is not None else unanswered.what if unanswered is not None else ""
        return f"{_NO_BROKER} at {', '.join(nodes)}" + (f" ({why})" if why else "") + self.address_hint

    async def _watch(self) -> None:
        """Log each problem that lasts for longer than a moment: at first, repeatedly while it lasts, and at its end.

        A producer logs a topic that does not exist once, because ``send`` has raised the error. Nothing is logged at
        the end of a problem if its topic is not asked for any more.
        """
        while True:
            now = self._env.clock.monotonic()
            topics = self._topic_troubles
            present = self._present_troubles()
            for subject, lasted_s in self._troubles.end(now, present):
                if subject == _NO_BROKER:
                    extra = {BEFORE_CONTACT: self._told_before_contact}
                    _log.warning("after %.0f s a broker answers again", lasted_s, extra=extra)
                elif topics[subject] in self._topics:
                    _log.warning("this problem is over after %.0f s: %s", lasted_s, subject)
            once = {
                text
                for text, name in self._topic_troubles.items()
                if self._topic_idle_ms < float("inf") and self._is_absent(name)
            }
            for subject, lasted_s in self._troubles.look(now, present, once):
                text = self._silence() if subject == _NO_BROKER else subject
                before_contact = not self.cluster.nodes
                if subject == _NO_BROKER:
                    self._told_before_contact = before_contact
                extra = {BEFORE_CONTACT: before_contact}
                _log.warning("%s, for %.0f s now", text, lasted_s, extra=extra)
            await self._changed.wait(min(max(self._troubles.next_at() - now, 0.01), _LOOK_EVERY_S))

    def _present_troubles(self) -> dict[str, float | None]:
        """The present problems, each with its start. None: the problem began when this method first found it."""
        found: dict[str, float | None] = {}
        silent_since = self._look_for_silence()
        if silent_since is not None:
            found[_NO_BROKER] = silent_since
        self._topic_troubles = {}
        for name in self._topics:
            topic = self.cluster.topics.get(name)
            if topic is None:
                continue
            if self._is_absent(name):
                self._topic_troubles[f"topic {name} does not exist"] = name
            elif leaderless := [p.partition for p in topic.partitions.values() if p.leader < 0]:
                some = ", ".join(map(str, leaderless[:_NAMED_PARTITIONS])) + (
                    ", ..." if len(leaderless) > _NAMED_PARTITIONS else ""
                )
                self._topic_troubles[f"topic {name}: no leader for partitions {some}"] = name
        return found | dict.fromkeys(self._topic_troubles)

    def _look_for_silence(self) -> float | None:
        """The start of the time in which no broker has answered.

        None if no response is due, or if a response has been due for a moment only.
        """
        answered_at = self._connections.answered_at
        if self._silent_since is not None and self._silent_since <= answered_at:
            self._silent_since = None
        if self._silent_since is None:
            unanswered = self._connections.unanswered()
            owed = [self._asking_since, None if unanswered is None else unanswered.since + SILENT_S]
            # A time in the future is ignored: a response that arrives before this time would not end the silence.
            begun = [since for since in owed if since is not None and since <= self._env.clock.monotonic()]
            if begun:
                self._silent_since = max(min(begun), answered_at)
        return self._silent_since

    def _announce(self) -> None:
        self.generation += 1
        self._changed.set()
        updated, self._updated = self._updated, anyio.Event()
        updated.set()
        for listener in self._listeners:
            listener()

    # ------------------------------------------------------------ waiting

    def close(self, why: ClientClosedError | None = None) -> None:
        """Stop updates, and wake the tasks that wait for an update; ``why`` is the error that they raise."""
        self._closed_because = why or ClientClosedError("the client is closed")
        self._updated.set()

    async def wait_update(self, timeout_s: float | None = None) -> None:
        """Return after the next refresh, successful or not, or after ``timeout_s``.

        Raises ClientClosedError if the client is already closed, or is closed during the wait.
        """
        updated = self._updated
        with anyio.move_on_after(timeout_s):
            await updated.wait()
        if self._closed_because is not None:
            raise self._closed_because

    async def topic(self, name: str, timeout_ms: float) -> TopicInfo:
        """A topic with its partitions. Raises KafkaTimeoutError if the topic is not known after ``timeout_ms``."""
        deadline = self._env.clock.monotonic() + timeout_ms / 1000
        self.want(name)
        while True:
            topic = self.cluster.topics.get(name)
            if topic is not None:
                if topic.partitions:
                    return topic
                if topic.error in _TOPIC_FATAL:
                    raise error_for(topic.error, f"{name}: {topic.error.message}")
            if self.failure is not None and not isinstance(self.failure, RetriableError):
                raise self.failure
            left = deadline - self._env.clock.monotonic()
            if left <= 0:
                failure = self.failure.message if self.failure is not None else None
                why = failure or (topic.error.message if topic is not None else "no answer")
                waited = f"no metadata of topic {name} after {timeout_ms:.0f} ms"
                raise KafkaTimeoutError(f"{waited}: {why}{self.address_hint}")
            await self.wait_update(left)

    async def describe(self, names: Iterable[str] | None, timeout_ms: float) -> Cluster:
        """The brokers, and the topics of these names or all topics, as a broker describes them now. None is created.

        Raises KafkaTimeoutError if no broker answers within ``timeout_ms``.
        """
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        failure, attempt = None, 0
        with anyio.move_on_after(timeout_ms / 1000):
            while True:
                try:
                    response: MetadataResponse = await self._connections.request(self.any_node(), request)
                    return Cluster().merge(response, None)
                except KafkaError as error:
                    if not error.code.retriable:
                        raise
                    failure = error
                attempt += 1
                first_ms, max_ms = self._retry_backoff_ms, self._retry_backoff_max_ms
                await anyio.sleep(backoff_ms(attempt, first_ms, max_ms, self._env.rng.random()) / 1000)
        why = failure.message if failure is not None else self.silence or "there is no response yet"
        raise KafkaTimeoutError(f"no description of topics after {timeout_ms:.0f} ms: {why}{self.address_hint}")

    async def ready(self, timeout_ms: float) -> None:
        """Wait for the first response of any broker. After ``timeout_ms`` the last error is raised."""
        deadline = self._env.clock.monotonic() + timeout_ms / 1000
        while not self.cluster.nodes:
            if self.failure is not None and not isinstance(self.failure, RetriableError):
                raise self.failure
            left = deadline - self._env.clock.monotonic()
            if left <= 0:
                names = ", ".join(str(node) for node in self._bootstrap)
                why = f": {self.failure.message}" if self.failure is not None else ""
                raise KafkaTimeoutError(f"no answer from {names} after {timeout_ms:.0f} ms{why}{self.address_hint}")
            self.request_update()
            await self.wait_update(left)
