"""Requests that are served whole, as far as their size and their single item show."""

from __future__ import annotations

import pytest

from anabranch.broker.net import large_requests
from anabranch.broker.net.large_requests import CUTS
from anabranch.broker.request import large_batches
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import RECORDS_AT_ONCE, build_batch
from anabranch.protocol.batch_layout import SMALL_BODY_BYTES
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.named_items import NAMED, Named


def test_a_request_of_one_item_in_each_array_is_not_cut() -> None:
    most = large_requests.MOST_BYTES_OF_ONE
    for api_key, cuts in CUTS.items():
        is_named = api_key in NAMED
        assert large_requests.may_be_cut(api_key, most - 1, has_one_item=True) == (not is_named)
        for found in cuts if is_named else ():
            assert found.asked in [_path(named)[: len(found.asked)] for named in NAMED[api_key]]
            records = most // large_requests._BYTES_AS_AN_ITEM if api_key == ApiKey.PRODUCE else 0
            assert len(found.asked) + records <= found.at_once


def _path(named: Named | None) -> tuple[str, ...]:
    return () if named is None else (named.array, *_path(named.inner))


def test_whether_a_request_may_be_cut_is_known_from_its_size_and_from_its_single_item() -> None:
    least, most = large_requests.LEAST_BYTES, large_requests.MOST_BYTES_OF_ONE
    assert not large_requests.may_be_cut(ApiKey.PRODUCE, least - 1, has_one_item=False)
    assert large_requests.may_be_cut(ApiKey.PRODUCE, least, has_one_item=False)
    assert not large_requests.may_be_cut(ApiKey.PRODUCE, most - 1, has_one_item=True)
    assert large_requests.may_be_cut(ApiKey.PRODUCE, most, has_one_item=True)


def batch(count: int = 1, size: int = 10, codec: CompressionType = CompressionType.NONE) -> memoryview:
    return memoryview(build_batch([(b"k", b"v" * size, (), 0)] * count, compression=codec))


def produce(topics: int, partitions: int, records: memoryview | None) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records) for index in range(partitions)]
    return ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)] * topics)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("request_", "is_usual"),
    [
        pytest.param(produce(1, 1, batch()), True, id="one small batch"),
        pytest.param(produce(1, 1, batch(RECORDS_AT_ONCE)), True, id="as many records as are read at once"),
        pytest.param(produce(1, 1, memoryview(b"")), True, id="no batch, which the handler refuses"),
        pytest.param(produce(1, 1, batch(RECORDS_AT_ONCE + 1)), False, id="many records"),
        pytest.param(produce(1, 1, batch(1, SMALL_BODY_BYTES)), False, id="many bytes"),
        pytest.param(produce(1, 1, batch(1, 1000, CompressionType.GZIP)), False, id="compressed"),
        pytest.param(produce(1, 1, None), False, id="null records"),
        pytest.param(produce(1, 2, batch()), False, id="two partitions"),
        pytest.param(produce(2, 1, batch()), False, id="two topics"),
        pytest.param(produce(1, 0, batch()), False, id="no partition"),
        pytest.param(produce(0, 0, batch()), False, id="no topic"),
    ],
)
async def test_only_a_single_small_batch_goes_to_the_handler_without_a_look_for_large_ones(
    request_: ProduceRequest, is_usual: bool
) -> None:
    assert (large_batches.only_small(request_) is not None) is is_usual
    assert not (is_usual and await large_batches.find(request_))
