"""How large a request may be, in bytes and in elements, by its API: known from its first bytes, before any login."""

from __future__ import annotations

from typing import Final, NamedTuple

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.decode_budget import DecodeBudget

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""Kafka's default of ``socket.request.max.bytes``."""
MIB: Final = 1024 * 1024

ADMIN_APIS: Final = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
    )
)
"""Requests of many small parts: requests that brokers forward to the controller, and requests about log dirs."""
CONTROLLER_APIS: Final = frozenset((ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA))
"""Requests of the controller to a broker: they may name every partition of the cluster."""

# A decoded request with its frame takes at most 16 times its bytes. A flat part lets short requests be dense: thirty
# thousand topics of one partition and a short name need 20 bytes for a byte.
_MEMORY_PER_BYTE: Final = 11
FLAT_MEMORY: Final = 4 * MIB
# One replica of a partition, with a broker id above 256, needs 14 bytes for a byte in LeaderAndIsr.
_CONTROLLER_MEMORY_PER_BYTE: Final = 14.5
CONTROLLER_FLAT_MEMORY: Final = MIB


class RequestLimits(NamedTuple):
    """The limits of one process, by config key."""

    max_bytes: int = MAX_FRAME_BYTES
    """``socket.request.max.bytes``: Produce, and the controller's requests."""
    max_small_bytes: int = 16 * MIB
    """``small.request.max.bytes``: every other request."""
    max_admin_bytes: int = 2 * MIB
    """``admin.request.max.bytes``: ``ADMIN_APIS``."""
    max_elements: int = 1_000_000
    """``request.max.elements``: the items of all arrays of a request."""
    max_admin_elements: int = 200_000
    """``admin.request.max.elements``: the same for ``ADMIN_APIS``, whose requests the controller decides one by one."""
    max_controller_elements: int = 10_000_000
    """``controller.request.max.elements``: the same for ``CONTROLLER_APIS``."""
    max_fetch_elements: int = 100_000
    """``fetch.request.max.elements``: the same for Fetch, which keeps objects of each partition while it waits."""
    max_decoded_bytes: int = 64 * MIB
    """``decoded.requests.max.bytes``: the objects of all large requests that are decoded or served; -1: no limit."""
    bulk_apis: frozenset[ApiKey] = CONTROLLER_APIS | {ApiKey.PRODUCE}
    """The APIs that ``max_bytes`` is for. A controller serves none of them."""

    @property
    def half_of_decoded_bytes(self) -> int:
        """One of the rooms of ``decoded.requests.max.bytes``; -1: no limit."""
        return max(1, self.max_decoded_bytes // 2) if self.max_decoded_bytes > 0 else self.max_decoded_bytes

    def of_bytes(self, api_key: int) -> tuple[int, str]:
        """The bytes that a request may have, and the config key that says so."""
        if api_key in ADMIN_APIS and self.max_admin_bytes < self.max_small_bytes:
            return self.max_admin_bytes, "admin.request.max.bytes"
        if api_key in self.bulk_apis or self.max_bytes < self.max_small_bytes:
            return self.max_bytes, "socket.request.max.bytes"
        return self.max_small_bytes, "small.request.max.bytes"

    @property
    def smallest(self) -> int:
        """A request of fewer bytes is allowed whatever its API is."""
        return min(self.max_bytes, self.max_small_bytes, self.max_admin_bytes)

    def budget(self, api_key: int, size: int) -> DecodeBudget:
        """The budget for decoding a request of ``size`` bytes."""
        if api_key in CONTROLLER_APIS:
            memory = int(_CONTROLLER_MEMORY_PER_BYTE * size) + CONTROLLER_FLAT_MEMORY
            return DecodeBudget(self.max_controller_elements, memory, "controller.request.max.elements")
        memory = _MEMORY_PER_BYTE * size + FLAT_MEMORY
        if api_key in ADMIN_APIS and self.max_admin_elements < self.max_elements:
            return DecodeBudget(self.max_admin_elements, memory, "admin.request.max.elements")
        if api_key == ApiKey.FETCH and self.max_fetch_elements < self.max_elements:
            return DecodeBudget(self.max_fetch_elements, memory, "fetch.request.max.elements")
        return DecodeBudget(self.max_elements, memory, "request.max.elements")


DEFAULT_LIMITS: Final = RequestLimits()

_RESPONSE_ELEMENTS: Final = 10_000_000
_RESPONSE_MEMORY_PER_BYTE: Final = 16


def response_budget(size: int) -> DecodeBudget:
    """The budget for decoding a response of ``size`` bytes, from a server that may be hostile."""
    return DecodeBudget(_RESPONSE_ELEMENTS, _RESPONSE_MEMORY_PER_BYTE * size + FLAT_MEMORY)
