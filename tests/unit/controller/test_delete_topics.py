"""The effects of DeleteTopics: each decision is made from an image, and requests for several topics are carried out."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.controller.admin.delete_topics import DeletionDemand, decide, delete_topics
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.config import ControllerConfig
from anabranch.controller.effects import Effects
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.outcome import Outcome, UnreadTopicError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.runtime.env import CreateOp, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.refusals import assert_only_refuses

CONFIG = ControllerConfig(controller_id=1000, zookeeper_connect="z")
ID = {name: uuid.UUID(int=number) for number, name in enumerate("tuv", 1)}


def cluster(topics: Collection[str] = "tuv") -> ClusterImage:
    """Return an image of topics with one partition each; the znode of ``bad`` cannot be read."""
    image = ClusterImage(1000, 4, malformed={"bad": 7})
    for name in topics:
        image.topics[name] = TopicImage(name, TopicZnode.new(ID[name], {0: [1]}), 3, 7)
    return image


def decided(
    demand: DeletionDemand,
    *,
    existing: Collection[str] = ("t", "u", "v", "bad"),
    requested: Collection[str] = (),
    config: ControllerConfig = CONFIG,
) -> Effects:
    return decide(cluster(), config, existing, requested, demand)


@pytest.mark.parametrize("demand", [DeletionDemand("t"), DeletionDemand(None, ID["t"])], ids=["by name", "by id"])
def test_a_deletion_is_recorded_and_the_answer_waits_until_the_topic_is_gone(demand: DeletionDemand) -> None:
    effects = decided(demand)
    assert effects.writes == [CreateOp(paths.delete_topic("t"), b"")]
    assert (effects.topic, effects.znode, effects.notify, effects.asks) == ("t", None, (), ())
    result = effects.response
    assert (result.name, result.topic_id, result.error_code) == ("t", ID["t"], ErrorCode.NONE)
    (wait,) = effects.waits
    assert wait.result is result
    image = cluster()
    acknowledged = {4: True}
    senders = SimpleNamespace(last_flush=4, acknowledged=lambda flush: acknowledged[flush])
    context: Any = SimpleNamespace(image=image, senders=senders)
    assert not wait.condition(context)
    image.deletions["t"] = {}
    del image.topics["t"]
    assert not wait.condition(context), "the topic's znodes are not removed yet"
    del image.deletions["t"]
    acknowledged[4] = False
    assert not wait.condition(context), "a broker has not answered yet"
    senders.last_flush, acknowledged[4] = 5, True
    assert wait.condition(context), "the answer does not wait for later requests"


def test_a_recorded_deletion_is_waited_for_and_not_written_again() -> None:
    effects = decided(DeletionDemand("t"), requested=["t"])
    assert (list(effects.writes), len(effects.waits)) == ([], 1)


def test_a_topic_with_an_illegal_name_that_was_created_by_hand_is_deleted() -> None:
    image = cluster()
    image.topics["a b"] = TopicImage("a b", TopicZnode.new(uuid.UUID(int=8), {0: [1]}), 3, 7)
    assert decide(image, CONFIG, ["a b"], (), DeletionDemand("a b")).response.error_code == ErrorCode.NONE


def refusals() -> dict[str, tuple[ErrorCode, Effects]]:
    disabled = replace(CONFIG, delete_topic_enable=False)
    return {
        "twice": (ErrorCode.INVALID_REQUEST, decided(DeletionDemand("t", is_repeated=True))),
        "neither name nor id": (ErrorCode.INVALID_REQUEST, decided(DeletionDemand(None))),
        "name and id": (ErrorCode.INVALID_REQUEST, decided(DeletionDemand("t", ID["t"]))),
        "an illegal name": (ErrorCode.INVALID_TOPIC_EXCEPTION, decided(DeletionDemand("n" * 300))),
        "no such topic": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, decided(DeletionDemand("none"))),
        "removed by hand just now": (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            decided(DeletionDemand("t"), existing=["u"]),
        ),
        "no such id": (ErrorCode.UNKNOWN_TOPIC_ID, decided(DeletionDemand(None, uuid.UUID(int=9)))),
        "unreadable": (ErrorCode.INVALID_TOPIC_EXCEPTION, decided(DeletionDemand("bad"))),
        "disabled": (ErrorCode.TOPIC_DELETION_DISABLED, decided(DeletionDemand("t"), config=disabled)),
    }


@pytest.mark.parametrize("kind", list(refusals()))
def test_a_refusal_has_no_effect_except_its_response(kind: str) -> None:
    code, effects = refusals()[kind]
    assert_only_refuses(effects, code)


# ---------------------------------------------------------------- carrying out


class Store:
    """Has the znodes of some topics and no deletion requests; records writes."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics, self.written = topics, list[str]()

    async def write(self, ops: Sequence[ZkOp]) -> list[int]:
        self.written += [op.path for op in ops]
        return [0 for _ in ops]


def context_of(store: Store, topics: Collection[str] = "tuv") -> Any:
    return SimpleNamespace(image=cluster(topics), config=CONFIG, store=store)


async def deleted(context: Any, request: DeleteTopicsRequest, version: int) -> Outcome:
    """Carry out a request while no deletion is requested."""
    decisions = delete_topics(context, request, version, set(context.store.topics), set())
    return await carry_out_all(context, decisions)


@pytest.mark.trio
async def test_each_topic_is_answered_and_its_deletion_is_written_once() -> None:
    context = context_of(Store("tuv"))
    wanted = [DeleteTopicState(name="t"), DeleteTopicState(name="u"), DeleteTopicState(topic_id=ID["t"])]
    wanted += [DeleteTopicState(name="v"), DeleteTopicState(name="v"), DeleteTopicState(name="none")]
    outcome = await deleted(context, DeleteTopicsRequest(topics=wanted, timeout_ms=7), 6)
    codes = [(result.name, result.error_code) for result in outcome.response.responses]
    assert codes == [
        ("t", ErrorCode.NONE),
        ("u", ErrorCode.NONE),
        ("t", ErrorCode.NONE),
        ("v", ErrorCode.INVALID_REQUEST),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert context.store.written == [paths.delete_topic("t"), paths.delete_topic("u")]
    assert ([wait.result.name for wait in outcome.waits], outcome.timeout_ms) == (["t", "u", "t"], 7)


@pytest.mark.trio
async def test_nothing_is_written_while_one_of_the_topics_is_not_read_yet() -> None:
    """The request is decided again as a whole.

    Otherwise a topic that is deleted meanwhile would be reported as unknown.
    """
    context = context_of(Store("tu"), topics="t")
    with pytest.raises(UnreadTopicError):
        await deleted(context, DeleteTopicsRequest(topic_names=["t", "u"]), 5)
    assert context.store.written == []


@pytest.mark.trio
async def test_a_topic_that_cannot_be_read_is_answered_at_once() -> None:
    outcome = await deleted(context_of(Store(["bad"])), DeleteTopicsRequest(topic_names=["bad"]), 5)
    assert [result.error_code for result in outcome.response.responses] == [ErrorCode.INVALID_TOPIC_EXCEPTION]


@pytest.mark.trio
async def test_topics_that_the_request_does_not_name_need_not_be_read() -> None:
    context = context_of(Store("tu"), topics="t")
    outcome = await deleted(context, DeleteTopicsRequest(topic_names=["t"]), 5)
    assert [result.error_code for result in outcome.response.responses] == [ErrorCode.NONE]
