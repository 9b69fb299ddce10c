"""The tagged fields of Anabranch go only to clients that ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.framing import ASKS_TAG, RequestHeader, decode_request, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.heartbeat import HeartbeatRequest
from anabranch.protocol.own_tags import is_own, withholder
from anabranch.protocol.schema import Field, table_named
from anabranch.wire_reference import own_tags

WITHHELD = [key for key in ApiKey if withholder(key) is not None]


def header_of(header: RequestHeader, body: Any) -> RequestHeader:
    frame = b"".join(bytes(part) for part in encode_request(header, body))
    return decode_request(memoryview(frame)[4:]).header


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("body", [HeartbeatRequest(), ApiVersionsRequest()])
def test_a_tag_in_the_header_of_a_flexible_request_asks(asks: bool, body: Any) -> None:
    version = API[ApiKey(body.API_KEY)].max_version
    header = RequestHeader(body.API_KEY, version, 1, "client", asks)
    assert header_of(header, body) == header


def test_a_version_without_tags_cannot_ask() -> None:
    assert not header_of(RequestHeader(ApiKey.HEARTBEAT, 3, 1, None, True), HeartbeatRequest()).asks_for_own_tags


@pytest.mark.parametrize("tags", [b"\x00", b"\x01\x05\x00", b"\x01\xaf\x50\x01\x07", b"\x02\x05\x00\xaf\x50\x00"])
def test_other_tags_do_not_ask_and_are_skipped(tags: bytes) -> None:
    plain = b"".join(bytes(p) for p in encode_request(RequestHeader(ApiKey.HEARTBEAT, 4, 1, "c"), HeartbeatRequest()))
    at = 4 + 8 + 2 + 1
    request = decode_request(memoryview(plain[4:at] + tags + plain[at + 1 :]))
    assert (request.body, request.header.asks_for_own_tags) == (HeartbeatRequest(), False)


def filled(fields: Sequence[Field], cls: type) -> Any:
    """A message with one element in each array, and a value other than the default in each own tagged field."""
    message = cls()
    for f in fields:
        if is_own(f):
            setattr(message, f.name, "not the default")
        elif f.fields:
            inner = filled(f.fields, getattr(__import__(cls.__module__, fromlist=["x"]), str(f.struct_name)))
            setattr(message, f.name, [inner] if f.is_array else inner)
    return message


def own_values(fields: Sequence[Field], message: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, value, default) of each own tagged field."""
    for f in fields:
        if is_own(f):
            yield f.name, getattr(message, f.name), f.default
        elif f.fields:
            value = getattr(message, f.name)
            for item in value if f.is_array else [value]:
                yield from own_values(f.fields, item)


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("key", WITHHELD, ids=lambda key: key.name)
def test_no_answer_keeps_an_own_tag(key: ApiKey, in_steps: bool) -> None:
    cls = API[key].response
    fields = table_named(cls.TABLE).fields
    message = filled(fields, cls)
    withhold = withholder(key)
    assert withhold is not None and list(own_values(fields, message))
    if in_steps:
        for _ in withhold.in_steps(message):
            pass
    else:
        withhold.at_once(message)
    assert [name for name, value, default in own_values(fields, message) if value != default] == []


def test_every_answer_to_clients_with_own_tags_is_known() -> None:
    """Only answers of Anabranch's own APIs, and those of controllers and brokers to each other, keep the tags."""
    tagged = {key for key in ApiKey if list(own_values_of(table_named(API[key].response.TABLE).fields))}
    kept = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA} | {
        key for key in ApiKey if key >= 25_300
    }
    assert set(WITHHELD) == tagged - kept
    assert {ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT, ApiKey.DESCRIBE_GROUPS} <= set(WITHHELD)


def own_values_of(fields: Sequence[Field]) -> Iterator[Field]:
    for f in fields:
        if is_own(f):
            yield f
        yield from own_values_of(f.fields)


def test_a_tag_has_one_meaning_and_a_meaning_one_tag() -> None:
    """The meaning is the name of the field. The tag of request headers stands in no table."""
    used = {(tag, found.name) for tag, _, _, found in own_tags()} | {(ASKS_TAG, "asks_for_own_tags")}
    tags, names = zip(*used)
    assert [pair for pair in sorted(used) if tags.count(pair[0]) > 1 or names.count(pair[1]) > 1] == []
