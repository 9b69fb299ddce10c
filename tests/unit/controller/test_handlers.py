"""Each API of the controller has one file, with the API's name as file name and the API's name and key as header."""

from __future__ import annotations

import sys

import pytest

from anabranch.controller.admin.dispatch import HANDLERS
from anabranch.protocol.api_keys import API, ApiKey


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: ApiKey(key).name)
def test_the_file_of_an_api_has_its_name(key: int) -> None:
    handler, name = HANDLERS[key], ApiKey(key).name.lower()
    assert (handler.__module__, handler.__name__) == (f"anabranch.controller.admin.{name}", name)
    heading = sys.modules[handler.__module__].__doc__ or ""
    assert heading.startswith(f"{API[ApiKey(key)].name} ({int(key)}): ")
