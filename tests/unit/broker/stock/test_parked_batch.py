"""A parked batch keeps its own bytes in memory, and not the request that it came in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anabranch.broker.handlers.produce import _Batch, _park
from anabranch.broker.log.append_validation import ReadBatch
from anabranch.broker.request.context import RequestContext
from anabranch.broker.request.large_batches import LargeBatch
from anabranch.broker.stock.client_session import ClientSession
from anabranch.broker.stock.order_without_idempotence import RetryOrder
from anabranch.broker.stock.producers import Park
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.memory_budget import MemoryBudget


def test_a_parked_batch_does_not_keep_the_buffer_of_its_request() -> None:
    memory = MemoryBudget(1 << 20)
    node: Any = SimpleNamespace(
        config=SimpleNamespace(values=SimpleNamespace(ordered_delivery_stock_producers_max_park_ms=1000)),
        env=SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0)),
        request_memory=memory,
        metrics=SimpleNamespace(traffic=lambda _: SimpleNamespace(bytes_rejected=0)),
    )
    sent = bytes(build_batch([(b"key", b"value", (), 1000)]))
    buffer = bytearray(3 * sent)
    views = [memoryview(buffer)[number * len(sent) : (number + 1) * len(sent)] for number in range(3)]
    keys = [TopicPartition("t", number) for number in range(3)]
    ctx = RequestContext(node, "PLAINTEXT", "host", "client", ApiKey.PRODUCE, 9, 1, ClientSession(1))
    reads = [ReadBatch(RecordBatch(view)) for view in views]
    ctx.large_batches = {key: LargeBatch(read, None) for key, read in zip(keys, reads, strict=True)}
    batch = _Batch(keys[0], None, views[0], reads[0], None)
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "earlier batches first")
    early = Park(error, RetryOrder(0.0), reads[0].batch.sent_records())
    partition: Any = SimpleNamespace(key=keys[0], term=1)
    parked = _park(ctx, partition, batch, -1, early)
    assert memory.taken_bytes == len(sent)
    del ctx, batch, early, reads, views
    buffer.append(0)  # raises BufferError while a view of the buffer is left
    parked.let_go()
    assert memory.taken_bytes == 0
