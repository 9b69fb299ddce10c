"""The judgement of users' arguments: what is allowed, and what the errors say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from anabranch import ConfigError, Producer, TopicPartition
from anabranch.client import arguments
from anabranch.client.group.coordinator_link import OffsetAndMetadata, committed_offset
from tests.unit.client.conftest import Run
from tests.unit.client.fake_broker import FakeBroker

T0 = TopicPartition("t", 0)


class Whole:
    """A whole number of another type, such as numpy's."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (arguments.offset, 2**63 - 1, 2**63 - 1),
        (arguments.offset, Whole(), 7),
        (arguments.duration, Whole(), 7.0),
        (arguments.duration, math.inf, math.inf),
        (arguments.topic_partition, ("t", Whole()), ("t", 7)),
        (arguments.each(arguments.topic), iter(["a", "b"]), ["a", "b"]),
        (arguments.blob, bytearray(b"v"), b"v"),
        (committed_offset, 5, OffsetAndMetadata(5)),
        (committed_offset, (5, "m"), OffsetAndMetadata(5, "m")),
    ],
)
def test_a_value_is_returned_in_the_type_that_the_client_uses(rule: arguments.Rule, value: Any, expected: Any) -> None:
    assert rule("name", value) == expected


@pytest.mark.parametrize(
    ("rule", "value", "error", "message"),
    [
        (arguments.timestamp, 2**63, ValueError, f"x {2**63} is not a whole number from 0 to {2**63 - 1}"),
        (arguments.timestamp, 1.5, TypeError, f"x 1.5 is not a whole number from 0 to {2**63 - 1}"),
        (arguments.partition, True, TypeError, f"x True is not a whole number from 0 to {2**31 - 1}"),
        (arguments.duration, math.nan, ValueError, "x nan is not a number from 0 on"),
        (arguments.topic, "", ValueError, "x '' is not the name of a topic"),
        (arguments.text, "\ud800", ValueError, "x '\\ud800' is not text of at most 32767 bytes in UTF-8"),
        (arguments.text, "x" * 32_768, ValueError, "is not text of at most 32767 bytes"),
        (arguments.topic_partition, ("t", -1), ValueError, "x.partition -1 is not"),
        (arguments.each(arguments.topic), "t", TypeError, "x 't' is not a list"),
        (arguments.each(arguments.offset), [1, None], TypeError, "x[1] None is not a whole number"),
        (arguments.mapping(arguments.topic, arguments.offset), {"t": -1}, ValueError, "x['t'] -1 is not"),
        (arguments.pattern, "(", ValueError, "x '(' is not a regular expression: missing )"),
        (arguments.listener("on_it"), object(), TypeError, "is not an object with one of the methods on_it"),
    ],
)
def test_a_refusal_says_the_name_the_value_and_what_is_allowed(
    rule: arguments.Rule, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        rule("x", value)
    assert message in str(refused.value)


def test_a_number_with_more_digits_than_python_writes_is_refused() -> None:
    with pytest.raises(ValueError, match="x a value of int is not a whole number"):
        arguments.offset("x", 10**5000)


def test_a_parameter_without_a_rule_is_found_when_its_class_is_made() -> None:
    with pytest.raises(TypeError, match="seek"):

        @arguments.judged({"seek": {"offset": arguments.offset}})
        class Client:
            def seek(self, offset: int, *, new: bool) -> None: ...


@pytest.mark.parametrize("chosen", [1.0, -1, True, None, "0"])
def test_a_partitioner_that_chooses_no_number_fails_the_send_and_nothing_else(run: Run, chosen: Any) -> None:
    async def check() -> None:
        choices = [chosen, 0]
        async with (
            FakeBroker({"t": 2}).running() as broker,
            Producer(bootstrap_servers=broker.address, partitioner=lambda topic, key: choices.pop(0)) as producer,
        ):
            with pytest.raises((TypeError, ValueError), match="that the partitioner chose"):
                await producer.send("t", b"v")
            assert (await producer.send_and_wait("t", b"v")).partition == 0

    run(check)


def test_a_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not host:port"):
        Producer(bootstrap_servers="x" * 64 + ":9092")
