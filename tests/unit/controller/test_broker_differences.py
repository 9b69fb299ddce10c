"""The differences between the registered brokers and the brokers of the image."""

from __future__ import annotations

from dataclasses import replace

from anabranch.controller.brokers import Difference, clock_ahead_ms, difference
from anabranch.controller.image import LiveBroker
from anabranch.zk_schemas.broker_registration import Endpoint
from tests.support.controller.decisions import BROKER_EPOCH, cluster, live


def found(*registered: LiveBroker) -> Difference:
    """Return the difference to an image with brokers 1, 2 and 3."""
    return difference(cluster(), {broker.id: broker for broker in registered})


def test_unchanged_registrations_give_an_empty_difference() -> None:
    assert found(live(1), live(2), live(3)) == Difference({}, [], [], [])


def test_brokers_disappear_and_join() -> None:
    assert found(live(5), live(4), live(2)) == Difference({}, [1, 3], [live(4), live(5)], [])


def test_a_broker_with_another_broker_epoch_disappeared_and_joined() -> None:
    again = live(2, BROKER_EPOCH + 1)
    assert found(live(1), again, live(3)) == Difference({}, [2], [again], [])


def test_a_broker_that_only_has_another_address_neither_disappeared_nor_joined() -> None:
    """KIP-226: the address is written to the same znode, so that the broker epoch stays."""
    moved = replace(live(2), registration=replace(live(2).registration, endpoints=[Endpoint("PLAINTEXT", "b", 7)]))
    assert found(live(1), moved, live(3)) == Difference({}, [], [], [moved])


def test_a_broker_that_lacks_a_finalized_feature_counts_as_gone() -> None:
    """KIP-584, Feature versioning and guarantees."""
    lacking = [replace(live(id), registration=replace(live(id).registration, features={})) for id in (2, 4)]
    refused, gone, joined, changed = found(live(1), *lacking, live(3))
    assert (list(refused), gone, joined, changed) == ([2, 4], [2], [], [])
    assert "broker 2" in refused[2] and "; " in refused[2]


def test_the_time_of_a_registration_shows_a_brokers_clock() -> None:
    broker = replace(live(1), registration=replace(live(1).registration, timestamp_ms=90_000))
    assert [clock_ahead_ms(broker, now_ms) for now_ms in (10_000, 100_000)] == [80_000, -10_000]
    unknown = replace(live(1), registration=replace(live(1).registration, timestamp_ms=-1))
    assert clock_ahead_ms(unknown, 10_000) == 0
