"""``confluent_kafka.Consumer`` over the blocking consumer."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import anyio.to_thread

from anabranch.client import OffsetAndMetadata, errors
from anabranch.client.consumer.arguments import CONSUMER_RULES
from anabranch.client.net.metadata import AbsentTopicError
from anabranch.confluent.commits import CommitOutcome
from anabranch.confluent.commits import Consumer as BlockingConsumer
from anabranch.confluent.config import consumer_options, named_as_given
from anabranch.confluent.errors import CODES, KafkaError, KafkaException, error_of, translated
from anabranch.confluent.limits import limit, within
from anabranch.confluent.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    ClusterMetadata,
    Message,
    TopicPartition,
    cluster_metadata,
    message_of,
)
from anabranch.confluent.missing import missing
from anabranch.protocol.types import TopicPartition as Partition

Rebalanced = Callable[["Consumer", list[TopicPartition]], object]


class Consumer:
    """A consumer with ``poll``, whose messages are errors or records. One thread at a time may use it."""

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        given = {**(conf or {}), **more}
        with translated(), named_as_given(given):
            options, self._on_commit = consumer_options(given)
            self._consumer = BlockingConsumer(**options)
        self._outcomes: deque[tuple[KafkaError | None, list[TopicPartition]]] = deque()
        """The calls of ``on_commit`` that are due."""
        if self._on_commit is not None:
            self._consumer.on_commit = self._note_outcome
        self._callback_thread = 0
        """The thread in which a rebalance callback runs; 0 if none does."""

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the blocking consumer; in a rebalance callback directly in its event loop."""
        with translated():
            if threading.get_ident() != self._callback_thread:
                return getattr(self._consumer, name)(*args, **kwargs)
            return self._call_in_callback(getattr(self._consumer._client, name), *args, **kwargs)

    def _call_within(self, timeout: float | None, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call an async function in the event loop, for at most ``timeout`` seconds."""
        call = within(timeout, name, function, *args)
        with translated():
            if threading.get_ident() != self._callback_thread:
                return self._consumer._run(call)
            return self._call_in_callback(call)

    def _call_in_callback(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = self._consumer._loop
        assert loop is not None
        return loop.call(functools.partial(function, *args, **kwargs))

    # ------------------------------------------------------------ what to read

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """Read ``topics`` as a member of the group. A topic that begins with ``^`` is a regular expression.

        The callbacks get this consumer and the partitions. They run in another thread, while ``poll``, ``consume`` or
        ``close`` waits for them. They may call the methods of the consumer, but not ``poll``, ``consume``,
        ``subscribe``, ``unsubscribe`` and ``close``.
        """
        if isinstance(topics, str):
            raise TypeError(f"topics {topics!r} is not a list of names")
        calls = {"assigned": on_assign, "revoked": on_revoke, "lost": on_lost}
        listener = _Listener()
        for event, callback in calls.items():
            if callback is not None:
                setattr(listener, f"on_partitions_{event}", functools.partial(self._call_back, callback))
        patterns = [topic for topic in topics if topic.startswith("^")]
        if not patterns:
            self._call("subscribe", topics, listener=listener if vars(listener) else None)
            return
        alternatives = [topic[1:] if topic in patterns else f"{topic}$" for topic in topics]
        pattern = "|".join(f"(?:{text})" for text in alternatives)
        self._call("subscribe", pattern=pattern, listener=listener if vars(listener) else None)

    async def _call_back(self, callback: Rebalanced, partitions: list[Partition]) -> None:
        await anyio.to_thread.run_sync(self._in_callback, callback, [TopicPartition(*tp) for tp in partitions])

    def _in_callback(self, callback: Rebalanced, partitions: list[TopicPartition]) -> None:
        self._callback_thread = threading.get_ident()
        try:
            callback(self, partitions)
        finally:
            self._callback_thread = 0

    def unsubscribe(self) -> None:
        self._call("unsubscribe")

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly ``partitions``, each from its offset. In ``on_assign`` only the offsets count."""
        chosen = list(partitions)
        if threading.get_ident() != self._callback_thread:
            self._call("assign", [tp.key for tp in chosen])
        self._start_at(chosen)

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read ``partitions`` too, each from its offset. In ``on_assign`` only the offsets count."""
        chosen = list(partitions)
        if threading.get_ident() != self._callback_thread:
            self._call("incremental_assign", [tp.key for tp in chosen])
        self._start_at(chosen)

    def unassign(self) -> None:
        """Read nothing. In ``on_revoke`` it does nothing, because the partitions are given up anyway."""
        if threading.get_ident() != self._callback_thread:
            self._call("assign", [])

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading ``partitions``. In ``on_revoke`` it does nothing."""
        if threading.get_ident() != self._callback_thread:
            self._call("incremental_unassign", [tp.key for tp in partitions])

    def _start_at(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp.offset >= 0 or tp.offset in (OFFSET_BEGINNING, OFFSET_END):
                self.seek(tp)

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*tp) for tp in sorted(self._call("assignment"))]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._call("pause", *(tp.key for tp in partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._call("resume", *(tp.key for tp in partitions))

    def _note_outcome(self, chosen: Mapping[Partition, OffsetAndMetadata], error: Exception | None) -> None:
        """In the client's thread: note a call of ``on_commit``."""
        failure = None if error is None else error_of(error)
        partitions = [TopicPartition(*tp, offset=at.offset, metadata=at.metadata) for tp, at in chosen.items()]
        for partition in partitions:
            partition.error = failure
        self._outcomes.append((failure, partitions))

    def _call_on_commit(self) -> None:
        while self._outcomes and self._on_commit is not None:
            self._on_commit(*self._outcomes.popleft())

    # ------------------------------------------------------------ messages

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if there is none for ``timeout`` seconds. Without ``timeout``, or with -1, it waits.

        An error of the broker or the group is a message with ``error()``; so is, once, a topic that does not exist:
        UNKNOWN_TOPIC_OR_PART. An error that ends the client is raised.
        """
        deadline = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            self._call_on_commit()
            with contextlib.suppress(CommitOutcome):
                return self._next(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _next(self, limit_s: float | None) -> Message | None:
        try:
            record = self._consumer.poll(limit_s)
        except (errors.ClientClosedError, errors.ForkedClientError):
            with translated():
                raise
        except AbsentTopicError as error:
            return Message(error.topic, error=error_of(error))
        except errors.KafkaError as error:
            return Message(error=error_of(error))
        except errors.IllegalStateError as error:
            raise KafkaException(error_of(error)) from error
        return None if record is None else message_of(record)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """The next ``num_messages``, or those that there are in ``timeout`` seconds."""
        if not 0 <= num_messages <= 1_000_000:
            raise ValueError(f"num_messages {num_messages} is outside of 0 to 1,000,000")
        deadline = None if timeout < 0 else time.monotonic() + timeout
        found: list[Message] = []
        while len(found) < num_messages:
            if not found:  # what the callback raises must not lose messages
                self._call_on_commit()
            try:
                message = self._next(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except CommitOutcome:
                if found:
                    break
                continue
            if message is None:
                break
            found.append(message)
        return found

    # ------------------------------------------------------------ offsets

    def store_offsets(self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None) -> None:
        """Count ``message``, or all before ``offsets``, as processed: ``enable.auto.offset.store`` must be False."""
        self._call("store_offsets", offsets=_offsets(message, offsets) or {})

    def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit ``message``, ``offsets``, or the positions (or stored offsets) of all partitions.

        Commits are sent in the order of the calls. With ``asynchronous`` the call does not wait for the broker, except
        in a callback of ``subscribe``. The logger ``anabranch.confluent.commits`` warns of an error, and ``close``
        waits for the commit. Without ``asynchronous`` the call raises the error or returns the committed offsets.
        """
        judged = CONSUMER_RULES["commit"]["offsets"]
        chosen: dict[Partition, OffsetAndMetadata] | None = judged("offsets", _offsets(message, offsets))
        is_in_callback = threading.get_ident() == self._callback_thread
        run = self._call_in_callback if is_in_callback else self._consumer._run
        with translated():
            run(self._consumer.commit_in_turn, chosen, waits=is_in_callback or not asynchronous)
        if asynchronous:
            return None
        if chosen is None:
            return self.committed(self.assignment())
        return [TopicPartition(*tp, offset=at.offset, metadata=at.metadata) for tp, at in chosen.items()]

    def committed(self, partitions: Iterable[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The committed offset of each partition, or OFFSET_INVALID."""
        chosen = list(partitions)

        async def committed() -> list[Any]:
            return [await self._consumer._client.committed(tp.key) for tp in chosen]

        found = self._call_within(timeout, "committed", committed)
        return [_at(tp, offset) for tp, offset in zip(chosen, found, strict=True)]

    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The offset of the next message of each partition. Waits until it is known."""
        return [_at(tp, self._call("position", tp.key)) for tp in partitions]

    def seek(self, partition: TopicPartition) -> None:
        """Go on from ``partition.offset``, which may be OFFSET_BEGINNING or OFFSET_END."""
        if partition.offset == OFFSET_BEGINNING:
            self._call("seek_to_beginning", partition.key)
        elif partition.offset == OFFSET_END:
            self._call("seek_to_end", partition.key)
        else:
            self._call("seek", partition.key, partition.offset)

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int]:
        """The first offset, and the offset after the last record."""
        found: tuple[int, int] = self._call("get_watermark_offsets", partition.key, limit(timeout), cached=cached)
        return found

    def offsets_for_times(self, partitions: Iterable[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """For each partition the first offset at or after the time in ``offset`` (ms); OFFSET_END if there is none."""
        chosen = list(partitions)
        times = {tp.key: tp.offset for tp in chosen}
        found = self._call_within(timeout, "offsets_for_times", self._consumer._client.offsets_for_times, times)
        return [_at(tp, OFFSET_END if found[tp.key] is None else found[tp.key].offset) for tp in chosen]

    # ------------------------------------------------------------ others

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The brokers, and all topics or one."""
        return cluster_metadata(self._call("list_topics", topic, limit(timeout)))

    def close(self) -> None:
        """Commit, with ``enable.auto.commit``, and leave the group."""
        if threading.get_ident() == self._callback_thread:
            raise KafkaException(KafkaError(CODES["_STATE"], "a rebalance callback cannot close its consumer"))
        try:
            self._call("close")
        finally:
            self._call_on_commit()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing("Consumer", name), name=name, obj=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Listener:
    """Has one async method for each callback that was given."""


def _offsets(
    message: Message | None, offsets: Sequence[TopicPartition] | None
) -> dict[Partition, OffsetAndMetadata] | None:
    """The offsets after ``message``, or as given; None without both."""
    if message is not None and offsets is not None:
        raise ValueError("message and offsets cannot be given together")
    if message is not None:
        failure, topic = message.error(), message.topic()
        if failure is not None or topic is None:
            raise KafkaException(failure or KafkaError(CODES["_INVALID_ARG"], "the message has no topic"))
        epoch = message.leader_epoch()
        after = OffsetAndMetadata(message.offset() + 1, leader_epoch=-1 if epoch is None else epoch)
        return {Partition(topic, message.partition()): after}
    if offsets is None:
        return None
    return {
        tp.key: OffsetAndMetadata(tp.offset, tp.metadata or "", -1 if tp.leader_epoch is None else tp.leader_epoch)
        for tp in offsets
    }


def _at(tp: TopicPartition, offset: int | None) -> TopicPartition:
    return TopicPartition(tp.topic, tp.partition, OFFSET_INVALID if offset is None else offset)
