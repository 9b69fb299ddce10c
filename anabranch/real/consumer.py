"""``anabranch.Consumer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from anabranch.client.arguments import constructing
from anabranch.client.config import ConsumerConfig, documented
from anabranch.client.consumer import consumer
from anabranch.client.options import ConsumerOptions, Key, Value
from anabranch.real.bootstrap import with_bootstrap
from anabranch.runtime.env import Env
from anabranch.runtime.real_anyio import client_env


@documented(ConsumerConfig)
class Consumer(consumer.Consumer[Key, Value]):
    """Reads records; the keyword arguments are Kafka's consumer keys with underscores.

        async with Consumer("topic", bootstrap_servers="localhost:9092", group_id="g") as c:
            batches = await c.getmany(timeout_ms=1000)   # TopicPartition -> records
            async for record in c: ...

    The topics by position are subscribed; ``subscribe`` replaces them. One task reads. A call of ``getmany`` or
    ``getone``, or the next step of ``async for``, means that all records delivered before are processed; only then are
    they committed. Rebalance callbacks run inside these calls. At the end of the block the consumer commits (with
    ``enable_auto_commit``) and leaves the group. After an exception it does not commit.
    """

    @constructing
    def __init__(
        self,
        *topics: str,
        key_deserializer: Callable[[bytes | None], Key] | None = None,
        value_deserializer: Callable[[bytes | None], Value] | None = None,
        env: Env | None = None,
        **config: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(
            *topics,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            env=env or client_env(),
            **with_bootstrap(config),
        )
