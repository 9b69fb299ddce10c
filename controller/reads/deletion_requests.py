"""Reads requests to delete topics, and the znodes of deleted topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.controller.context import Context
from anabranch.controller.events import DeletionsChanged, RemovalDue
from anabranch.controller.reads.topics import FoundTopics, read_topic_list
from anabranch.controller.states import ReplicaStatus
from anabranch.controller.store import MAX_OPERATIONS, read_each
from anabranch.zk_schemas import paths

REMOVED_AT_ONCE = MAX_OPERATIONS // 2 - 1
"""Partitions whose znodes are removed before other events are handled: each takes two operations of a multi."""


class FoundRequest(NamedTuple):
    """The czxid of a deletion request, or None if it was withdrawn. ``znodes`` are the topic's znodes that exist."""

    zxid: int | None
    znodes: Collection[str]


class FoundDeletions(NamedTuple):
    """The new deletion requests by topic. ``topics`` is read if one of them names a topic that is not in the image."""

    requests: Mapping[str, FoundRequest]
    topics: FoundTopics | None


@dataclass(frozen=True, slots=True)
class FoundZnodes:
    """The znodes of a deleted topic."""

    partitions: Mapping[str, Sequence[str]]
    """The children of a limited number of partition znodes, by name."""
    is_all: bool
    """Whether ``partitions`` has all partition znodes."""
    others: Collection[str]
    """The other znodes of the topic that exist; empty unless ``is_all``."""


async def read_deletions(context: Context) -> FoundDeletions:
    image = context.image
    names = await context.store.children(paths.DELETE_TOPICS, context.events.watch(DeletionsChanged()))
    started = [name for name in names if name not in image.deletions]
    topics = await read_topic_list(context) if any(name not in image.topics for name in started) else None
    requests: dict[str, FoundRequest] = {}

    async def read(name: str) -> None:
        request = await context.store.exists(paths.delete_topic(name))
        requests[name] = FoundRequest(None if request is None else request.czxid, await _existing(context, name))

    await read_each(started, read)
    return FoundDeletions({name: requests[name] for name in started}, topics)


async def read_deleted(context: Context, event: RemovalDue) -> FoundZnodes | None:
    """Read the znodes of a topic whose replicas are all deleted. Returns None if the deletion has begun again."""
    name = event.name
    replicas = context.image.deletions.get(name)
    if replicas is None or any(status is not ReplicaStatus.DELETION_SUCCESSFUL for status in replicas.values()):
        return None  # the cluster was read again, and the deletion began again
    indexes = await context.store.children(paths.partitions(name))
    found: dict[str, Sequence[str]] = {}

    async def read(index: str) -> None:
        found[index] = await context.store.children(f"{paths.partitions(name)}/{index}")

    await read_each(indexes[:REMOVED_AT_ONCE], read)
    is_all = len(indexes) <= REMOVED_AT_ONCE
    others = await _existing(context, name) if is_all else ()
    return FoundZnodes({index: found[index] for index in sorted(found)}, is_all, others)


async def _existing(context: Context, name: str) -> set[str]:
    """Those of the topic's znodes that exist, apart from partitions."""
    asked = (paths.topic(name), paths.partitions(name), paths.topic_config(name), paths.delete_topic(name))
    return {path for path in asked if await context.store.exists(path) is not None}
