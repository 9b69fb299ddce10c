"""The advertised APIs: the dispatch table, with the version ranges of the message tables."""

from __future__ import annotations

from anabranch.broker.net.dispatch import HANDLERS, Dispatcher
from anabranch.protocol.api_keys import API, ApiKey


def test_every_api_with_a_handler_is_advertised_with_the_versions_of_its_table() -> None:
    shown = {ApiKey(api.api_key): (api.min_version, api.max_version) for api in Dispatcher().advertised}
    assert shown == {key: (API[key].min_version, API[key].max_version) for key in HANDLERS}
