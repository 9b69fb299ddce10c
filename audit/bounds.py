"""Selects the partitions and records of a query. The options are named as in Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

_MAX = 2**63 - 1
_Offsets = dict[str, dict[int, int]]
_MILLISECONDS = "a number of milliseconds since 1970"
OPTIONS = ("assign", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp")


class PartitionBounds(NamedTuple):
    """A partition's bounds: offsets [first_offset, end_offset), timestamps [first_timestamp, end_timestamp)."""

    first_offset: int = 0
    end_offset: int = _MAX
    first_timestamp: int = -_MAX
    end_timestamp: int = _MAX


EVERYTHING = PartitionBounds()


@dataclass(frozen=True, slots=True)
class WantedPartitions:
    """The partitions to read (None: all), and the bounds of each."""

    assigned: Mapping[str, list[int]] | None = None
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    first_timestamp: int = EVERYTHING.first_timestamp
    end_timestamp: int = EVERYTHING.end_timestamp

    def check(self, there: Mapping[str, Collection[int]]) -> None:
        """Raise ValueError for a named partition that does not exist."""
        named = {"assign": self.assigned or {}, "startingOffsets": self.starts, "endingOffsets": self.ends}
        for option, topics in named.items():
            for topic, partitions in topics.items():
                if topic not in there:
                    raise ValueError(f"option {option}: there is no topic {topic!r}, only {', '.join(sorted(there))}")
                if unknown := sorted(p for p in partitions if p not in there[topic]):
                    raise ValueError(f"option {option}: topic {topic} has no partition {unknown[0]}")

    def of(self, topic: str, partition: int) -> PartitionBounds | None:
        """The bounds of a partition; None when it is not read."""
        if self.assigned is not None and partition not in self.assigned.get(topic, ()):
            return None
        return PartitionBounds(
            self.starts.get(topic, {}).get(partition, EVERYTHING.first_offset),
            self.ends.get(topic, {}).get(partition, EVERYTHING.end_offset),
            self.first_timestamp,
            self.end_timestamp,
        )


def wanted(options: Mapping[str, str]) -> WantedPartitions:
    """The selection by these options. Raises ValueError, which names the option."""
    return WantedPartitions(
        assigned=_json(options, "assign", dict[str, list[int]], 'like {"events": [0, 1]}', None),
        starts=_json(options, "startingOffsets", _Offsets, 'like {"events": {"0": 23}}', {}),
        ends=_json(options, "endingOffsets", _Offsets, 'like {"events": {"0": 23}}', {}),
        first_timestamp=_json(options, "startingTimestamp", int, _MILLISECONDS, EVERYTHING.first_timestamp),
        end_timestamp=_json(options, "endingTimestamp", int, _MILLISECONDS, EVERYTHING.end_timestamp),
    )


def _json(options: Mapping[str, str], name: str, kind: type, example: str, default: Any) -> Any:
    if name not in options:
        return default
    try:
        return msgspec.json.decode(options[name], type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"option {name} is {options[name]!r}, but has to be {example}: {error}") from None
