"""CreatePartitions at a broker: the request of a stock client is marked for the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.handlers.create_partitions import handle
from anabranch.protocol.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from anabranch.protocol.request_kinds import StockCheck


@pytest.mark.trio
@pytest.mark.parametrize(
    ("version", "asks_for_own_tags", "given", "forwarded"),
    [
        (0, False, StockCheck.NONE, (2, StockCheck.RECORDS)),
        (3, False, StockCheck.NONE, (3, StockCheck.RECORDS)),
        (3, False, StockCheck.PRODUCERS, (3, StockCheck.RECORDS)),
        (3, True, StockCheck.NONE, (3, StockCheck.NONE)),
        (3, True, StockCheck.PRODUCERS, (3, StockCheck.PRODUCERS)),
    ],
)
async def test_a_request_without_the_tag_in_its_header_is_marked_in_a_version_that_has_the_mark(
    version: int, asks_for_own_tags: bool, given: StockCheck, forwarded: tuple[int, StockCheck]
) -> None:
    sent: list[tuple[int, int]] = []

    async def request(body: CreatePartitionsRequest, version: int, *_: Any) -> CreatePartitionsResponse:
        sent.append((version, body.stock_check))
        return CreatePartitionsResponse(results=[])

    node: Any = SimpleNamespace(
        metadata=SimpleNamespace(wait_for=None),
        config=SimpleNamespace(values=SimpleNamespace(request_timeout_ms=1000)),
        env=SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0)),
        link=SimpleNamespace(controller=SimpleNamespace(request=request)),
        later=lambda work, _failed, may_stop: work,
    )
    context: Any = SimpleNamespace(node=node, api_version=version, asks_for_own_tags=asks_for_own_tags)
    topics = [CreatePartitionsTopic(name="t", count=6, assignments=None)]
    work: Any = handle(context, CreatePartitionsRequest(topics=topics, stock_check=given))
    await work()
    assert sent == [forwarded]
