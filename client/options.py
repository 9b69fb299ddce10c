"""The keyword arguments of the clients, for type checkers; ``config.py`` has their rules and defaults.

``make gen`` writes the classes of keys from the table in ``config.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    SentKey = TypeVar("SentKey", default=bytes | bytearray | memoryview, contravariant=True)
    SentValue = TypeVar("SentValue", default=bytes | bytearray | memoryview, contravariant=True)
    Key = TypeVar("Key", default=bytes | None)
    Value = TypeVar("Value", default=bytes | None)
    KeyOut = TypeVar("KeyOut", default=bytes | None, covariant=True)
    ValueOut = TypeVar("ValueOut", default=bytes | None, covariant=True)
else:  # defaults of type variables came with Python 3.13
    from typing import TypeVar

    SentKey, SentValue = TypeVar("SentKey", contravariant=True), TypeVar("SentValue", contravariant=True)
    Key, Value = TypeVar("Key"), TypeVar("Value")
    KeyOut, ValueOut = TypeVar("KeyOut", covariant=True), TypeVar("ValueOut", covariant=True)


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of every client."""

    bootstrap_servers: str | Sequence[str | tuple[str, int]]
    client_id: str | None
    client_rack: str | None
    request_timeout_ms: int
    metadata_max_age_ms: int
    layout_backoff_ms: int
    layout_backoff_max_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    connections_max_idle_ms: int
    receive_message_max_bytes: int


class ProducerOptions(ClientOptions, total=False):
    """The keyword arguments of ``Producer``, besides the serializers."""

    acks: Literal[0, 1, -1, "0", "1", "-1", "all"]
    enable_idempotence: bool
    max_in_flight_requests_per_connection: int
    retries: int
    delivery_timeout_ms: int
    max_block_ms: int
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_request_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    metadata_max_idle_ms: int


class ConsumerOptions(ClientOptions, total=False):
    """The keyword arguments of ``Consumer``, besides the deserializers."""

    group_id: str | None
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: Any
    enable_auto_commit: bool
    enable_auto_offset_store: bool
    auto_commit_interval_ms: int
    auto_offset_reset: Literal["earliest", "latest", "none"]
    isolation_level: Literal["read_uncommitted", "read_committed"]
    check_crcs: bool
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_decompressed_batch_bytes: int
    max_partition_fetch_bytes: int
    default_api_timeout_ms: int
    ordered_delivery_commit_before_report: bool
    ordered_delivery_unassigned_parent: Literal["fail", "ignore"]
    ordered_delivery_partitions_per_request: int
    allow_auto_create_topics: bool
    exclude_internal_topics: bool


class AdminOptions(ClientOptions, total=False):
    """The keyword arguments of ``Admin``."""

    default_api_timeout_ms: int
    retries: int
