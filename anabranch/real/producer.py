"""``anabranch.Producer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from anabranch.client.arguments import constructing
from anabranch.client.config import ProducerConfig, documented
from anabranch.client.options import ProducerOptions, SentKey, SentValue
from anabranch.client.producer import producer
from anabranch.client.producer.partitioner import Partitioner
from anabranch.real.bootstrap import with_bootstrap
from anabranch.runtime.env import Env
from anabranch.runtime.real_anyio import client_env


@documented(ProducerConfig)
class Producer(producer.Producer[SentKey, SentValue]):
    """Sends records; the keyword arguments are Kafka's producer keys with underscores.

        async with Producer(bootstrap_servers="localhost:9092", linger_ms=5) as p:
            handle = await p.send("topic", key=b"k", value=b"v")
            metadata = await handle

    The end of the block waits until all records are acknowledged or have failed. After an exception it does not wait,
    and unacknowledged records fail. The producer works under trio and asyncio.

    ``partitioner(topic_info, key_bytes)`` replaces the choice of partition. Without it, a key has the partition that
    Kafka's Java client chooses, and records without a key stick to one partition per batch.

    When the topic is resized (KIP-253), the partitions of unwritten records are chosen again, also by a
    ``partitioner``. The records of a key stay in the order in which they were sent. A record sent with ``partition=``
    is never moved: if that partition is merged into another, the record fails with ``PartitionMarkedError``. If the
    response for a record is lost, and the record's partition is removed, the record fails with ``OutcomeUnknownError``.
    So does an idempotent record if a response for its batch is lost and the broker then refuses the batch as too large.
    With ``acks=0``, records refused for their layout are lost, like all refused records. Without idempotence, a retry
    may write a record twice; after a resize the copies may be in two partitions.
    """

    @constructing
    def __init__(
        self,
        *,
        key_serializer: Callable[[SentKey], bytes | None] | None = None,
        value_serializer: Callable[[SentValue], bytes | None] | None = None,
        partitioner: Partitioner | None = None,
        env: Env | None = None,
        **config: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            env=env or client_env(),
            **with_bootstrap(config),
        )
