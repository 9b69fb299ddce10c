"""The rows of the console's tables. Numbers are None where they are not known."""

from __future__ import annotations

from typing import NamedTuple

from anabranch import ConfigEntry
from anabranch.console.rates import Hottest
from anabranch.view.topics import DescribedPartition


class BrokerRow(NamedTuple):
    id: int
    address: str | None
    """None for a broker that is down."""
    bytes: int | None
    free: list[tuple[str, int, int]]
    """(path, free bytes, bytes) of each log directory."""
    release: str | None
    rate: float | None
    leads: int
    hosts: int


class TopicRow(NamedTuple):
    name: str
    in_use: int
    marked: int
    replicas: int
    not_in_sync: int
    leaderless: int
    bytes: int | None
    ordered: bool
    rate: float | None = None
    lag: tuple[int, str] | None = None
    """The largest lag of a group, and the group."""


class PartitionRow(NamedTuple):
    of: DescribedPartition
    rate: float | None
    hottest: Hottest | None = None
    heat: int = 0
    """The rate in tenths of the highest rate on the page."""


class GroupRow(NamedTuple):
    name: str
    state: str
    topics: list[str]
    lag: int | None


class ConfigRow(NamedTuple):
    entry: ConfigEntry
    source: str
    otherwise: list[str]
    """The values that apply if the present value is removed."""
