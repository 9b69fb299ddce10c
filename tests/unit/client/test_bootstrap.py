"""The bootstrap servers of a client that is given none: the environment's, or the default, which errors name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio.testing

from anabranch import Admin, ConfigError, Consumer, KafkaTimeoutError, Producer, sync
from anabranch.client.config import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from anabranch.protocol.addresses import split_server
from anabranch.protocol.generated.metadata import MetadataResponse, MetadataResponseBroker
from tests.support.client.client_metadata import MetadataBrokers, metadata_over

KINDS = [Admin, Consumer, Producer, sync.Admin, sync.Consumer, sync.Producer]
HINT = f"{DEFAULT_BOOTSTRAP} is the default address"


@pytest.mark.parametrize("kind", KINDS)
def test_the_environment_names_the_servers_of_a_client_that_is_given_none(
    kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "h:1,i:2")
    assert kind().config.bootstrap_servers == (("h", 1), ("i", 2))
    assert kind(bootstrap_servers="j:3").config.bootstrap_servers == (("j", 3),)
    for value in ("", None):
        monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(BOOTSTRAP_VARIABLE, value)
        assert kind().config.bootstrap_servers == (split_server(DEFAULT_BOOTSTRAP),)


def test_the_error_for_a_bad_address_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "nowhere")
    with pytest.raises(ConfigError, match=f"^{BOOTSTRAP_VARIABLE}: "):
        Producer()


@pytest.mark.trio
async def test_an_error_names_the_default_address_until_a_broker_has_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = MetadataBrokers()
    metadata = metadata_over(brokers, bootstrap=split_server(DEFAULT_BOOTSTRAP))
    elsewhere = metadata_over(brokers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.run)
        nursery.start_soon(elsewhere.run)
        with pytest.raises(KafkaTimeoutError, match=f"no metadata of topic t after 100 ms: .*: refused; {HINT}, and "):
            await metadata.topic("t", 100)
        with pytest.raises(KafkaTimeoutError, match=HINT):
            await metadata.ready(100)
        assert HINT in str(metadata.silence)
        with pytest.raises(KafkaTimeoutError, match=r"refused$"):
            await elsewhere.topic("t", 100)
        brokers.answer = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)])
        await metadata.ready(5_000)
        brokers.answer = None
        with pytest.raises(KafkaTimeoutError) as raised:
            await metadata.topic("t", 100)
        assert HINT not in str(raised.value)
        nursery.cancel_scope.cancel()
