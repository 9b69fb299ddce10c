"""Each event of the controller has one handler.

Each API has a file with the API's name. The file begins with the API's name and key.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import NoReturn, get_args

import pytest

from anabranch.controller import handlers
from anabranch.controller.admin.dispatch import HANDLERS, on_call
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.config_changes import CHANGES_KEPT, on_configs_changed, purged
from anabranch.controller.events import AdminCall, Event
from anabranch.controller.handlers import ANSWERS
from anabranch.controller.reads.config_znodes import FoundConfigs
from anabranch.controller.reads.requests import read_facts
from anabranch.controller.request_batch import BrokerRequest
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.runtime.env import ZkError, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from tests.support.controller.decisions import cluster, context_of, decided


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: ApiKey(key).name)
def test_the_file_of_an_api_has_its_name(key: int) -> None:
    handler, name = HANDLERS[key], ApiKey(key).name.lower()
    assert (handler.__module__, handler.__name__) == (f"anabranch.controller.admin.{name}", name)
    heading = sys.modules[handler.__module__].__doc__ or ""
    assert heading.startswith(f"{API[ApiKey(key)].name} ({int(key)}): ")


def test_each_kind_of_event_has_one_handler() -> None:
    assert handlers.HANDLERS.keys() == set(get_args(Event))


def test_the_response_to_each_kind_of_request_has_one_handler() -> None:
    assert Counter([LeaderAndIsrRequest, *ANSWERS]) == Counter(get_args(BrokerRequest))


def test_a_request_whose_facts_cannot_be_read_is_answered_with_the_error() -> None:
    context = context_of(cluster())
    call = AdminCall(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[CreatableTopic(name="u")]), 7)
    assert decided(on_call(context, call, ZkError(paths.TOPICS, "no permission"))) == []
    (result,) = call.outcome.response.topics
    assert (result.error_code, result.error_message) == (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"{paths.TOPICS}: no permission",
    )


@pytest.mark.trio
async def test_any_error_of_the_reads_for_a_request_becomes_its_response() -> None:
    context = context_of(cluster())

    async def fail(_path: str) -> NoReturn:
        raise ZeroDivisionError("a bug")

    context.store.children = fail
    call = AdminCall(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[CreatableTopic(name="u")]), 7)
    await carry_out_all(context, on_call(context, call, await read_facts(context, call)))
    (result,) = call.outcome.response.topics
    assert (result.error_code, result.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)


def test_a_config_that_zookeeper_refuses_to_show_does_not_stop_the_others() -> None:
    context = context_of(cluster())
    path, unread = paths.topic_config("t"), {paths.topic_config("u"): ZkError(paths.topic_config("u"), "no permission")}
    read = {path: Znode(ConfigZnode({"retention.ms": "7"}).encode(), 3, 1, 1, 0)}
    decided(on_configs_changed(context, FoundConfigs(["config_change_1"], read, unread)))
    assert (context.image.config(path).version, context.image.config_changes_seen) == (3, "config_change_1")
    assert context.events.later == 1, "the cluster is read again later"


def test_old_config_notifications_are_deleted_many_at_a_time() -> None:
    """Each deletion makes every reader read the list again."""
    kept = [str(number) for number in range(CHANGES_KEPT)]
    assert purged(kept + ["x"] * 99) == ()
    assert purged([*("old" for _ in range(100)), *kept]) == ["old"] * 100
