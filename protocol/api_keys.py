"""The APIs that are implemented: key, name, message classes and version range, all read from the field tables.

A broker advertises those APIs of this table that it can dispatch. Message classes are imported when they are first
used, so a client does not load the messages between brokers.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from anabranch.protocol.message import Message
from anabranch.protocol.schema import LATEST
from anabranch.protocol.schema import MessageSchema as Table


class ApiKey(enum.IntEnum):
    """Kafka's number of an API. The name in lower case is the module of its table and of its classes."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    CONSUMER_GROUP_POSITION = 25300
    PARTITION_LEADER_EPOCHS_FOR_PARTITIONS = 25301
    TOPIC_READERS = 25302
    DESCRIBE_WITHHELD = 25303


class Api:
    """One API. The versions from ``min_version`` to ``max_version`` are implemented."""

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.name = key.name.title().replace("_", "")

    def __repr__(self) -> str:
        return f"Api({self.name} {self.min_version}-{self.max_version})"

    @functools.cached_property
    def _table(self) -> Table:
        return cast(Table, importlib.import_module(f"anabranch.protocol.messages.{self.key.name.lower()}").REQUEST)

    @functools.cached_property
    def min_version(self) -> int:
        return self._table.versions.first

    @functools.cached_property
    def max_version(self) -> int:
        return self._table.versions.last

    @functools.cached_property
    def flexible_from(self) -> int | None:
        """The first flexible version; None when no implemented version is flexible."""
        flexible = self._table.flexible
        return flexible.first if flexible.first <= flexible.last else None

    @functools.cached_property
    def first_flexible(self) -> int:
        """``flexible_from``; if no version is flexible, a number above all versions.

        From this version on a request has header version 2 and a response header version 1 (ApiVersions responses
        always 0).
        """
        return LATEST if self.flexible_from is None else self.flexible_from

    @functools.cached_property
    def request(self) -> type[Message]:
        return self._class("Request")

    @functools.cached_property
    def response(self) -> type[Message]:
        return self._class("Response")

    def _class(self, kind: str) -> type[Message]:
        module = importlib.import_module(f"anabranch.protocol.generated.{self.key.name.lower()}")
        return cast(type[Message], getattr(module, self.name + kind))


API: Final[Mapping[ApiKey, Api]] = MappingProxyType({key: Api(key) for key in ApiKey})
"""Every API that is implemented."""

API_BY_NUMBER: Final[Mapping[int, Api]] = {key.value: api for key, api in API.items()}
"""Every implemented API by its number in a request header."""
