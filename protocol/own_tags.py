"""The tagged fields of Anabranch in responses. They go only to clients that ask for them.

A client asks with tag 10287 in the header of its request, without a value and without another tagged field. Every
flexible version of a request can carry it, and a server that does not know it skips it. Some clients cannot skip
tagged fields that they do not know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.schema import Field, table_named

OWN_TAGS: Final = 10_000
"""Tags from this number on are not Kafka's."""
FIRST_OWN_API: Final = 25_300
"""APIs with keys from this number on are not Kafka's."""
_OF_THE_CLUSTER: Final = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
    )
)
"""APIs that only controllers and brokers use."""


class Withholder(NamedTuple):
    """Sets the own tagged fields of a response to their defaults, which are not sent."""

    at_once: Callable[[Any], None]
    in_steps: Callable[[Any], Generator[None, None, None]]
    """The same for a response of many items: yields after each item."""


@functools.cache
def withholder(api_key: int) -> Withholder | None:
    """What withholds the own tagged fields of an API's responses.

    None if no response of the API has such a field, or if only programs of this project use the API.
    """
    if api_key >= FIRST_OWN_API or api_key in _OF_THE_CLUSTER:
        return None
    return _withholder(table_named(API[ApiKey(api_key)].response.TABLE).fields)


def _withholder(fields: Sequence[Field]) -> Withholder | None:
    own = [f for f in fields if is_own(f)]
    lists = [f.name for f in own if isinstance(f.default, list)]
    defaults = [(f.name, f.default) for f in own if not isinstance(f.default, list)]
    found = ((f, _withholder(f.fields)) for f in fields if f.fields and not is_own(f))
    inner = [(f.name, f.is_array, withhold) for f, withhold in found if withhold is not None]
    if not own and not inner:
        return None

    def of_itself(message: Any) -> None:
        for name, default in defaults:
            setattr(message, name, default)
        for name in lists:
            setattr(message, name, [])

    def at_once(message: Any) -> None:
        of_itself(message)
        for name, is_array, of_item in inner:
            value = getattr(message, name)
            for item in (value or ()) if is_array else (value,):
                if item is not None:
                    of_item.at_once(item)

    def in_steps(message: Any) -> Generator[None, None, None]:
        of_itself(message)
        for name, is_array, of_item in inner:
            value = getattr(message, name)
            for item in (value or ()) if is_array else (value,):
                if item is not None:
                    yield from of_item.in_steps(item)
                    yield

    return Withholder(at_once, in_steps)


def is_own(field: Field) -> bool:
    """Whether the field is a tagged field of Anabranch."""
    return field.tag is not None and field.tag >= OWN_TAGS
