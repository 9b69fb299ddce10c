"""``anabranch.Producer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from anabranch.client.options import ProducerOptions, SentKey, SentValue
from anabranch.client.producer import producer
from anabranch.client.producer.producer import Partitioner
from anabranch.runtime.env import Env
from anabranch.runtime.real_anyio import client_env


class Producer(producer.Producer[SentKey, SentValue]):
    """Sends records; the keyword arguments are Kafka's producer keys with underscores.

        async with Producer(bootstrap_servers="localhost:9092", linger_ms=5) as p:
            handle = await p.send("topic", key=b"k", value=b"v")
            metadata = await handle

    Leaving the block waits until everything sent is acknowledged or has failed; leaving it by an exception does not
    wait, and what was not acknowledged fails. Works under trio and asyncio.

    ``partitioner(topic_info, key_bytes)`` replaces the choice of partition; without it a key goes where Kafka's Java
    client puts it and records without a key stick to one partition per batch.

    When the topic is resized (KIP-253), records that are not written yet are placed again, by the partitioner too, and
    records of a key stay in the order they were sent. A record sent with ``partition=`` is never moved: it fails with
    ``PartitionMarkedError`` when that partition is merged into another. A record whose answer was lost, and whose
    partition was removed since, fails with ``OutcomeUnknownError``. With ``acks=0`` records refused for their layout
    are lost, as all that are refused; without idempotence they may be written twice, as with any retry, and then in
    two partitions.
    """

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
            **config,
        )
