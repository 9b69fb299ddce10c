"""Each API has one handler file. The file has the API's name, and begins with the API's name and key."""

from __future__ import annotations

import sys

import pytest

from anabranch.broker.net.dispatch import HANDLERS
from anabranch.protocol.api_keys import API, ApiKey


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: key.name)
def test_the_file_of_an_api_has_its_name(key: ApiKey) -> None:
    handler = HANDLERS[key]
    assert handler.__module__ == f"anabranch.broker.handlers.{key.name.lower()}"
    assert handler.__name__ == "handle"
    heading = sys.modules[handler.__module__].__doc__ or ""
    assert heading.startswith(f"{API[key].name} ({int(key)})")
