"""The calls of ``confluent_kafka.admin.AdminClient`` for topics and their configuration."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from anabranch import client
from anabranch.blocking.admin import Admin
from anabranch.client.admin.types import ConfigSource
from anabranch.confluent.config import admin_options, named_as_given
from anabranch.confluent.errors import translated
from anabranch.confluent.limits import limit, within
from anabranch.confluent.messages import ClusterMetadata, cluster_metadata
from anabranch.confluent.missing import missing, missing_in_module

T = TypeVar("T")


@dataclass
class NewTopic:
    """A topic to create; -1 takes the broker's default."""

    topic: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignment: Sequence[Sequence[int]] | None = None
    """The brokers of each partition."""
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass
class NewPartitions:
    """The number of partitions that a topic is to have. A lower number merges partitions."""

    topic: str
    new_total_count: int
    replica_assignment: Sequence[Sequence[int]] | None = None
    """Must be None: the controller places the replicas."""


class ResourceType(Enum):
    """The kinds of resources that have a configuration here."""

    TOPIC = 2
    BROKER = 4


RESOURCE_TOPIC, RESOURCE_BROKER = ResourceType.TOPIC, ResourceType.BROKER


@dataclass(frozen=True)
class ConfigResource:
    """A topic, or a broker by its id. ``restype`` may be the name or the number of a ``ResourceType``."""

    Type = ResourceType
    restype: ResourceType
    name: str

    def __post_init__(self) -> None:
        restype: Any = self.restype
        known: dict[Any, ResourceType] = {key: kind for kind in ResourceType for key in (kind, kind.value, kind.name)}
        kind = known.get(restype.upper() if isinstance(restype, str) else restype)
        if kind is None:
            raise ValueError(f"restype {restype!r} is neither ResourceType.TOPIC nor ResourceType.BROKER")
        object.__setattr__(self, "restype", kind)


@dataclass(frozen=True)
class ConfigEntry:
    """A key of a topic or broker. The value of a sensitive key is None."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_default: bool
    is_sensitive: bool
    is_synonym: bool = False
    synonyms: Mapping[str, ConfigEntry] = field(default_factory=dict)


def _close_elsewhere(admin: Admin) -> None:
    """Close in another thread: the one that collects garbage may be the client's own, and must not wait."""
    threading.Thread(target=admin.close, name="anabranch AdminClient closes", daemon=True).start()


class AdminClient:
    """Creates, resizes, deletes and lists topics, and reads configurations.

    For everything else there is ``anabranch.sync.Admin``. It disconnects when no one refers to it: it has no ``close``.
    """

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        given = {**(conf or {}), **more}
        with translated(), named_as_given(given):
            self._admin = Admin(**admin_options(given))
        weakref.finalize(self, _close_elsewhere, self._admin).atexit = False

    def create_topics(
        self,
        new_topics: Iterable[NewTopic],
        *,
        operation_timeout: float | None = None,
        request_timeout: float | None = None,
        validate_only: bool = False,
    ) -> dict[str, Future[None]]:
        """Create topics one after the other. Returns a future for each by name, which is done already.

        ``operation_timeout`` is how long the controller may take for a topic, ``request_timeout`` how long this call
        waits for it, in seconds.
        """
        limit_ms = _milliseconds(operation_timeout)

        def create(new: NewTopic) -> None:
            assigned = dict(enumerate(new.replica_assignment or ()))
            counts = (-1, -1) if assigned else (new.num_partitions, new.replication_factor)
            topic = client.NewTopic(new.topic, *counts, new.config, assigned)
            self._call(request_timeout, "create_topics", [topic], timeout_ms=limit_ms, validate_only=validate_only)

        return {new.topic: _outcome(create, new) for new in new_topics}

    def delete_topics(
        self,
        topics: Iterable[str],
        *,
        operation_timeout: float | None = None,
        request_timeout: float | None = None,
    ) -> dict[str, Future[None]]:
        """Delete topics, as ``create_topics`` creates them."""
        limit_ms = _milliseconds(operation_timeout)

        def delete(name: str) -> None:
            self._call(request_timeout, "delete_topics", [name], timeout_ms=limit_ms)

        return {name: _outcome(delete, name) for name in topics}

    def create_partitions(
        self,
        new_partitions: Iterable[NewPartitions],
        *,
        operation_timeout: float | None = None,
        request_timeout: float | None = None,
        validate_only: bool = False,
    ) -> dict[str, Future[None]]:
        """Resize topics one after the other, as ``create_topics`` creates them. Keys keep their order."""
        limit_ms = _milliseconds(operation_timeout)

        def resize(new: NewPartitions) -> None:
            if new.replica_assignment:
                raise ValueError("replica_assignment must be None: the controller places the replicas")
            counts = {new.topic: new.new_total_count}
            self._call(request_timeout, "create_partitions", counts, timeout_ms=limit_ms, validate_only=validate_only)

        return {new.topic: _outcome(resize, new) for new in new_partitions}

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, request_timeout: float | None = None
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        """The keys of each topic or broker. The futures are done already. ``request_timeout`` is in s."""

        def describe(resource: ConfigResource) -> dict[str, ConfigEntry]:
            of_topic = resource.restype is ResourceType.TOPIC
            chosen: dict[str, Any] = {"topics": [resource.name]} if of_topic else {"brokers": [int(resource.name)]}
            (found,) = self._call(request_timeout, "describe_configs", **chosen).values()
            return {name: _config_entry(entry) for name, entry in found.items()}

        return {resource: _outcome(describe, resource) for resource in resources}

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The brokers, and all topics or one. Waits at most ``timeout`` seconds, or ``default.api.timeout.ms``."""
        with translated():
            return cluster_metadata(self._call(timeout, "_describe", None if topic is None else [topic]))

    def _call(self, timeout: float | None, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._admin._client, name)
        return self._admin._run(within(timeout, name.replace("_describe", "list_topics"), method, *args, **kwargs))

    def poll(self, timeout: float = 0) -> int:
        """Returns 0: nothing calls back."""
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing("AdminClient", name), name=name, obj=self)


def _config_entry(entry: client.ConfigEntry) -> ConfigEntry:
    synonyms = {
        each.name: ConfigEntry(
            each.name,
            each.value,
            each.source,
            entry.read_only,
            each.source == ConfigSource.DEFAULT_CONFIG,
            entry.sensitive,
            is_synonym=True,
        )
        for each in entry.synonyms
    }
    flags = (entry.read_only, entry.is_default, entry.sensitive)
    return ConfigEntry(entry.name, entry.value, entry.source, *flags, synonyms=synonyms)


def _outcome(function: Callable[[Any], T], argument: Any) -> Future[T]:
    """A future with the outcome of a call."""
    future: Future[T] = Future()
    try:
        with translated():
            found = function(argument)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(found)
    return future


def _milliseconds(seconds: float | None) -> int | None:
    limit_s = limit(seconds)
    return None if limit_s is None else int(limit_s * 1000)


def __getattr__(name: str) -> Any:
    return missing_in_module(__name__, name)
