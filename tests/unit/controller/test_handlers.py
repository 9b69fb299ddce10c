"""Each event of the controller has one handler.

Each API has a file with the API's name. The file begins with the API's name and key.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import get_args

import pytest

from anabranch.controller.admin.dispatch import HANDLERS
from anabranch.controller.events import Event
from anabranch.controller.handlers import ANSWERS, DECISIONS, PROCEDURES, UPDATES
from anabranch.controller.request_batch import BrokerRequest
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: ApiKey(key).name)
def test_the_file_of_an_api_has_its_name(key: int) -> None:
    handler, name = HANDLERS[key], ApiKey(key).name.lower()
    assert (handler.__module__, handler.__name__) == (f"anabranch.controller.admin.{name}", name)
    heading = sys.modules[handler.__module__].__doc__ or ""
    assert heading.startswith(f"{API[ApiKey(key)].name} ({int(key)}): ")


def test_each_kind_of_event_has_one_handler() -> None:
    assert Counter([*DECISIONS, *UPDATES, *PROCEDURES]) == Counter(get_args(Event))


def test_the_response_to_each_kind_of_request_has_one_handler() -> None:
    assert Counter([LeaderAndIsrRequest, *ANSWERS]) == Counter(get_args(BrokerRequest))
