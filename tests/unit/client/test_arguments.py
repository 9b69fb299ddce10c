"""The judgement of users' arguments: what is allowed, and what the errors say."""

from __future__ import annotations

import math
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from anabranch import ConfigError, Producer, TopicPartition
from anabranch.client import arguments
from anabranch.client.config import ProducerConfig
from anabranch.client.group.coordinator_link import OffsetAndMetadata, committed_offset
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
        (arguments.duration, Fraction(1, 2), 0.5),
        (arguments.duration, np.float32(5), 5.0),
        (arguments.topic_partition, ("t", Whole()), ("t", 7)),
        (arguments.each(arguments.topic), iter(["a", "b"]), ["a", "b"]),
        (arguments.each(arguments.topic), {"a": 1, "b": 2}, ["a", "b"]),
        (arguments.blob, bytearray(b"v"), b"v"),
        (committed_offset, 5, OffsetAndMetadata(5)),
        (committed_offset, (5, "m"), OffsetAndMetadata(5, "m")),
        (committed_offset, (5, None), OffsetAndMetadata(5, "")),
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
        (arguments.duration, 10**400, ValueError, "is not a number from 0 on"),
        (arguments.duration, "5", TypeError, "x '5' is not a number from 0 on"),
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
async def test_a_partitioner_that_chooses_no_number_fails_the_send_and_nothing_else(chosen: Any) -> None:
    choices = [chosen, 0]
    async with FakeBroker({"t": 2}).client(Producer, partitioner=lambda topic, key: choices.pop(0)) as producer:
        with pytest.raises((TypeError, ValueError), match="that the partitioner chose"):
            await producer.send("t", b"v")
        assert (await producer.send_and_wait("t", b"v")).partition == 0


def test_a_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not host:port"):
        Producer(bootstrap_servers="x" * 64 + ":9092")


@pytest.mark.parametrize("acks", [1, "1", np.int64(1), IntEnum("Acks", "LEADER")(1)])
def test_acks_may_be_a_number_of_any_type(acks: Any) -> None:
    assert ProducerConfig.parse({"acks": acks}).acks == 1


@pytest.mark.parametrize("acks", [True, 2, 1.0, Whole(), None])
def test_other_acks_are_refused(acks: Any) -> None:
    with pytest.raises(ConfigError, match='is not one of 0, 1, "all"'):
        ProducerConfig.parse({"acks": acks})
