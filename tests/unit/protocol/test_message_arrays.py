"""The arrays that are counted before a response is encoded at once."""

from __future__ import annotations

import pytest

from anabranch.protocol.generated.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from anabranch.protocol.message import has_more_items


def response(partitions: int, aborted: int) -> FetchResponse:
    one = [AbortedTransaction() for _ in range(aborted)]
    parts = [PartitionData(aborted_transactions=one) for _ in range(partitions)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=parts)])


@pytest.mark.parametrize(("partitions", "aborted"), [(0, 0), (1, 0), (2, 3)])
def test_the_items_of_all_nested_arrays_are_counted(partitions: int, aborted: int) -> None:
    items = 1 + partitions + partitions * aborted
    assert not has_more_items(response(partitions, aborted), items)
    assert has_more_items(response(partitions, aborted), items - 1)


def test_an_array_that_is_null_has_no_items() -> None:
    found = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData(aborted_transactions=None)])])
    assert not has_more_items(found, 2)
