"""Requests that are served whole, as far as their size and their single item show."""

from __future__ import annotations

from anabranch.broker.net import large_requests
from anabranch.broker.net.large_requests import CUTS
from anabranch.protocol.api_keys import ApiKey
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
