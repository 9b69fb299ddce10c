"""Messages from plain values: a dict stands for a structure, and a function answers each partition of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from anabranch.protocol.message import Struct

S = TypeVar("S", bound=Struct)
Fields = Mapping[str, Any]
INDEXES = ("partition_index", "partition", "index")
"""The fields that have a partition's number, in the messages of different APIs."""


@cache
def structures(kind: type[Struct]) -> dict[str, type[Struct]]:
    """The structure of each field that has one, or a list of them."""
    hints = get_type_hints(kind.__init__)
    found = {name: [hints[name], *get_args(hints[name])] for name in kind.FIELDS}
    return {
        name: each
        for name, types in found.items()
        for each in types
        if isinstance(each, type) and issubclass(each, Struct)
    }


def message(kind: type[S], **fields: Any) -> S:
    """Build a message; ``fields`` may have dicts in place of structures, at any depth."""
    nested = structures(kind)

    def built(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [built(name, each) for each in value]
        return message(nested[name], **value) if isinstance(value, Mapping) else value

    return kind(**{name: built(name, value) for name, value in fields.items()})


def by_partition(kind: type[S], found: Mapping[str, Mapping[int, Fields]], **fields: Any) -> S:
    """Build a message with these fields of each partition, by topic and partition."""
    topics, topic = next((name, each) for name, each in structures(kind).items() if structures(each))
    name = next(each for each in topic.FIELDS if each in ("name", "topic"))
    partitions, partition = next(iter(structures(topic).items()))
    index = next(each for each in INDEXES if each in partition.FIELDS)
    listed = [{name: t, partitions: [{index: p, **of} for p, of in parts.items()]} for t, parts in found.items()]
    return message(kind, **{topics: listed}, **fields)


def answered(kind: type[S], request: Any, answer: Callable[[str, int, Any], Fields], **fields: Any) -> S:
    """Build a response: ``answer`` gives the fields of each partition, from topic, number and the request's fields.

    A partition that the request names by its number alone has that number as its fields.
    """
    found: dict[str, dict[int, Fields]] = {}
    for topic in request.topics:
        name = topic.name if "name" in topic.FIELDS else topic.topic
        for asked in topic.partitions if "partitions" in topic.FIELDS else topic.partition_indexes:
            index = asked if isinstance(asked, int) else next(getattr(asked, i) for i in INDEXES if i in asked.FIELDS)
            found.setdefault(name, {})[index] = answer(name, index, asked)
    return by_partition(kind, found, **fields)
