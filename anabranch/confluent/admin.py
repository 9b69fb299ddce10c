"""The calls of ``confluent_kafka.admin.AdminClient`` that create, delete and list topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from anabranch import client
from anabranch.blocking.admin import Admin
from anabranch.confluent.config import admin_options
from anabranch.confluent.errors import translated
from anabranch.confluent.messages import ClusterMetadata, cluster_metadata


@dataclass
class NewTopic:
    """A topic to create; -1 takes the broker's default."""

    topic: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignment: Sequence[Sequence[int]] | None = None
    """The brokers of each partition."""
    config: Mapping[str, str] = field(default_factory=dict)


class AdminClient:
    """Creates, deletes and lists topics. For everything else there is ``anabranch.sync.Admin``."""

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        with translated():
            self._admin = Admin(**admin_options({**(conf or {}), **more}))

    def create_topics(
        self, new_topics: Iterable[NewTopic], *, operation_timeout: float | None = None, validate_only: bool = False
    ) -> dict[str, Future[None]]:
        """Create topics one after the other. Returns a future for each by name, which is done already.

        ``operation_timeout`` is in seconds.
        """
        limit_ms = _milliseconds(operation_timeout)

        def create(new: NewTopic) -> None:
            assigned = dict(enumerate(new.replica_assignment or ()))
            counts = (-1, -1) if assigned else (new.num_partitions, new.replication_factor)
            topic = client.NewTopic(new.topic, *counts, new.config, assigned)
            self._admin.create_topics([topic], timeout_ms=limit_ms, validate_only=validate_only)

        return {new.topic: _outcome(create, new) for new in new_topics}

    def delete_topics(
        self, topics: Iterable[str], *, operation_timeout: float | None = None
    ) -> dict[str, Future[None]]:
        """Delete topics, as ``create_topics`` creates them."""
        limit_ms = _milliseconds(operation_timeout)

        def delete(name: str) -> None:
            self._admin.delete_topics([name], timeout_ms=limit_ms)

        return {name: _outcome(delete, name) for name in topics}

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The brokers, and all topics or one. Waits at most ``default.api.timeout.ms``."""
        with translated():
            describe = self._admin._client._describe
            return cluster_metadata(self._admin._run(describe, None if topic is None else [topic]))

    def poll(self, timeout: float = 0) -> int:
        """Returns 0: nothing calls back."""
        return 0


def _outcome(function: Callable[[Any], None], argument: Any) -> Future[None]:
    """A future with the outcome of a call."""
    future: Future[None] = Future()
    try:
        with translated():
            function(argument)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(None)
    return future


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None or seconds < 0 else int(seconds * 1000)
