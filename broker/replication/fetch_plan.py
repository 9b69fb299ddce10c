"""Builds a follower's next fetch: the follower's half of an incremental fetch session (KIP-227). No IO.

A request looks only at partitions that were added, were dropped, or need another fetch offset since the last request.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.replication.fetch_session import MAX_EPOCH
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.broker.replication.follower import FollowedPartition
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import MANY_ITEMS
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from anabranch.protocol.sentinels import INITIAL_SESSION_EPOCH, INVALID_SESSION_ID, NO_EPOCH, NO_OFFSET
from anabranch.protocol.types import TopicPartition


class FetchPlan:
    """Collects changes, builds the next ``request``, and notes its response with ``answered``."""

    def __init__(self) -> None:
        self._session_id = INVALID_SESSION_ID
        self._epoch = INITIAL_SESSION_EPOCH
        self._broker_epoch = NO_EPOCH
        self._offsets: dict[TopicPartition, int] = {}
        """The partitions that are in the session after the last request, with the requested offsets."""
        self.asked: dict[TopicPartition, FollowedPartition] = {}
        """The followed partitions that the session has after the last request."""
        self._changed: dict[TopicPartition, None] = {}
        self._forgotten: dict[TopicPartition, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fetch."""
        return not self._offsets and not self._changed

    @property
    def changed(self) -> list[TopicPartition]:
        """The partitions that the next request names."""
        return list(self._changed)

    @property
    def has_session(self) -> bool:
        """Whether the leader keeps a session. If so, ``release`` may follow a request that is not answered yet."""
        return self._epoch != INITIAL_SESSION_EPOCH

    def offset(self, key: TopicPartition) -> int:
        """The offset last requested for a partition; -1 if none was requested."""
        return self._offsets.get(key, NO_OFFSET)

    def is_small(self, broker_epoch: int) -> bool:
        """Whether there is a next request, and it names few enough partitions to be encoded at once."""
        most = MANY_ITEMS // 4  # a request has an item for each partition and its topic
        if broker_epoch != self._broker_epoch:
            return 0 < len(self._offsets) + len(self._changed) <= most
        return not self.is_empty and len(self._changed) + len(self._forgotten) <= most

    def want(self, key: TopicPartition) -> None:
        """Fetch a partition from its log end on; the log end is read when the request is made."""
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def drop(self, key: TopicPartition) -> None:
        """Stop fetching a partition."""
        self._changed.pop(key, None)
        self.asked.pop(key, None)
        if self._offsets.pop(key, None) is not None:
            self._forgotten[key] = None

    def start_over(self, wanted: Mapping[TopicPartition, FollowedPartition]) -> None:
        """Forget the session: the next request names every partition."""
        self._session_id, self._epoch = INVALID_SESSION_ID, INITIAL_SESSION_EPOCH
        self._changed = {**self._changed, **dict.fromkeys(self._offsets)}
        self._changed = {key: None for key in self._changed if key in wanted}
        self._offsets.clear()
        self.asked.clear()
        self._forgotten.clear()

    def request(
        self,
        followed: Mapping[TopicPartition, FollowedPartition],
        config: FetcherConfig,
        broker_epoch: int,
        wait_ms: int,
    ) -> FetchRequest:
        """The next request.

        The first request under a new registration names every partition. Fetches under the old registration do not
        count (KIP-903), and an incremental fetch would not name an idle partition.
        """
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._changed.update((key, None) for key in self._offsets)
        topics: dict[str, FetchTopic] = {}
        for key in self._changed:
            one = followed[key]
            log = one.partition.log
            topic = topics.get(key.topic)
            if topic is None:
                topic = topics[key.topic] = FetchTopic(topic=key.topic)
            topic.partitions.append(
                FetchPartition(
                    partition=key.partition,
                    current_leader_epoch=one.leader_epoch,
                    fetch_offset=log.log_end_offset,
                    last_fetched_epoch=log.leader_epoch_cache.latest_epoch,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=config.max_bytes,
                )
            )
            self._offsets[key] = log.log_end_offset
            self.asked[key] = one
        forgotten: dict[str, ForgottenTopic] = {}
        for name, partition in self._forgotten:
            forgotten.setdefault(name, ForgottenTopic(topic=name)).partitions.append(partition)
        self._changed.clear()
        self._forgotten.clear()
        return FetchRequest(
            replica_id=config.broker_id,
            max_wait_ms=wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            replica_epoch=broker_epoch,
        )

    def release(self, config: FetcherConfig) -> FetchRequest:
        """The session's next request, without changes. On its arrival the leader answers the request that it parked.

        The leader answers the parked request first, and this request directly afterwards.
        """
        return FetchRequest(
            replica_id=config.broker_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=config.response_max_bytes,
            session_id=self._session_id,
            session_epoch=_next(self._epoch),
            replica_epoch=self._broker_epoch,
        )

    def answered(self, error: ErrorCode, session_id: int, wanted: Mapping[TopicPartition, FollowedPartition]) -> bool:
        """Note a response; False if the session is over and everything has to be requested again."""
        if error is not ErrorCode.NONE:
            self.start_over(wanted)
            return False
        if session_id == INVALID_SESSION_ID:
            # The leader keeps no session, so every request has to name every partition.
            self._session_id, self._epoch = INVALID_SESSION_ID, INITIAL_SESSION_EPOCH
            self._changed.update(dict.fromkeys(self._offsets))
        elif self._epoch == INITIAL_SESSION_EPOCH:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = _next(self._epoch)
        return True


def _next(epoch: int) -> int:
    return 1 if epoch == MAX_EPOCH else epoch + 1
