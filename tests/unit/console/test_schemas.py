"""Records decoded by the schemas of a registry: bytes as Confluent's serializers write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from google.protobuf import descriptor_pb2

from anabranch.console import schemas
from anabranch.console.schemas import Registry, Schema, UndecodableError, decoder_of, split

USER = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"]},
        {"name": "since", "type": {"type": "int", "logicalType": "date"}},
        {"name": "photo", "type": "bytes"},
    ],
}
ANNA = b"\x08Anna" + b"\x02\x54" + b"\x02" + b"\x04\xff\x00"
HEAD = b"\x00\x00\x00\x00\x07"


def proto(name: str, *dependencies: str, **fields: tuple[int, str]) -> str:
    """Return a file with the messages Outer and Other.

    Outer has ``fields`` (number, type) and an inner message with one text field.
    """
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=dependencies)
    outer = file.message_type.add(name="Outer")
    for field, (number, kind) in fields.items():
        added = outer.field.add(name=field, number=number, label=1)
        if kind == "string":
            added.type = 9
        else:
            added.type, added.type_name = 11, kind
    for message in (outer.nested_type.add(name="Inner"), file.message_type.add(name="Other")):
        message.field.add(name="text", number=1, label=1, type=9)
    return base64.b64encode(file.SerializeToString()).decode()


def letter() -> str:
    """Return a file with the message Letter of another package."""
    file = descriptor_pb2.FileDescriptorProto(name="x", package="mail", syntax="proto3")
    file.message_type.add(name="Letter").field.add(name="text", number=1, label=1, type=9)
    return base64.b64encode(file.SerializeToString()).decode()


class FakeRegistry:
    """A registry that answers by path and query, and records the requests."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers, self.asked = dict(answers), []  # type: tuple[dict[str, Any], list[str]]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        self.asked.append(path)
        answer = self.answers.get(path, (404, {"error_code": 40403, "message": "Schema not found"}))
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        return httpx.Response(status, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    def open(self) -> Registry:
        return Registry("http://registry:8081/", httpx.MockTransport(self))


@pytest.mark.trio
async def test_avro_is_decoded_with_logical_types_and_bytes() -> None:
    fake = FakeRegistry({"/schemas/ids/7": {"schema": json.dumps(USER)}})
    async with fake.open() as registry:
        for _ in range(2):
            found = json.loads(await registry.decode(HEAD + ANNA))
            assert found == {"name": "Anna", "age": 42, "since": "1970-01-02", "photo": "ff 00"}
    assert fake.asked == ["/schemas/ids/7"], "a schema is requested once"


@pytest.mark.trio
async def test_avro_is_decoded_by_a_schema_that_refers_to_another() -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "User"}]}
    reference = {"name": "User", "subject": "a/user", "version": 3}
    answers = {
        "/schemas/ids/7": {"schema": json.dumps(order), "references": [reference]},
        "/subjects/a%2Fuser/versions/3": {"schema": json.dumps(USER)},
    }
    async with FakeRegistry(answers).open() as registry:
        assert json.loads(await registry.decode(HEAD + ANNA))["by"]["name"] == "Anna"


@pytest.mark.parametrize(
    ("message", "data", "shown"),
    [
        (b"\x00", b"\x0a\x02hi", {"text": "hi"}),
        (b"\x02\x02", b"\x0a\x02hi", {"text": "hi"}),
        (b"\x04\x00\x00", b"\x0a\x02hi", {"text": "hi"}),
        (b"\x00", b"\x0a\x02hi\x12\x02\x08\x01", {"text": "hi", "at": "1970-01-01T00:00:01Z"}),
    ],
    ids=["first", "second", "nested", "well-known type"],
)
@pytest.mark.trio
async def test_protobuf_messages_are_decoded_by_their_number(
    message: bytes, data: bytes, shown: dict[str, str]
) -> None:
    time = "google/protobuf/timestamp.proto"
    file = proto("a.proto", time, text=(1, "string"), at=(2, ".google.protobuf.Timestamp"))
    answers = {
        "/schemas/ids/7": {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'},
        "/schemas/ids/7?format=serialized": {"schemaType": "PROTOBUF", "schema": file},
    }
    async with FakeRegistry(answers).open() as registry:
        assert json.loads(await registry.decode(HEAD + message + data)) == shown


@pytest.mark.trio
async def test_protobuf_is_decoded_by_a_file_that_imports_another() -> None:
    reference = {"name": "b.proto", "subject": "b", "version": 1}
    file = proto("a.proto", "b.proto", other=(1, ".mail.Letter"))
    answers = {
        "/schemas/ids/7": {"schemaType": "PROTOBUF", "schema": ""},
        "/schemas/ids/7?format=serialized": {"schema": file, "references": [reference]},
        "/subjects/b/versions/1?format=serialized": {"schema": letter()},
    }
    async with FakeRegistry(answers).open() as registry:
        assert json.loads(await registry.decode(HEAD + b"\x00\x0a\x04\x0a\x02hi")) == {"other": {"text": "hi"}}


@pytest.mark.trio
async def test_protobuf_that_was_registered_in_compiled_form_is_decoded() -> None:
    """Apicurio returns a schema as it was registered, and cannot return a compiled schema in serialized form."""
    reference = {"name": "b.proto", "subject": "b", "version": 1}
    file = proto("a.proto", "b.proto", other=(1, ".mail.Letter"))
    answers = {
        "/schemas/ids/7": {"schemaType": "PROTOBUF", "schema": file, "references": [reference]},
        "/schemas/ids/7?format=serialized": (500, {"message": "Syntax error"}),
        "/subjects/b/versions/1": {"schemaType": "PROTOBUF", "schema": letter()},
    }
    async with FakeRegistry(answers).open() as registry:
        assert json.loads(await registry.decode(HEAD + b"\x00\x0a\x04\x0a\x02hi")) == {"other": {"text": "hi"}}


@pytest.mark.trio
async def test_json_after_a_schema_id_is_shown_as_json() -> None:
    fake = FakeRegistry({"/schemas/ids/7": {"schemaType": "JSON", "schema": "{}"}})
    async with fake.open() as registry:
        assert await registry.decode(HEAD + b'{"a":1}') == '{\n  "a": 1\n}'


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin with the id"),
        (b"\x00\x00\x00\x07", "does not begin with the id"),
        (b'{"a": 1}', "does not begin with the id"),
        (HEAD + b"x" * schemas.DECODED_BYTES, "at most 1,048,576 are decoded"),
    ],
)
def test_data_without_a_schema_id_or_too_large_is_not_decoded(data: bytes, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        split(data)


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        (Schema("AVRO", json.dumps(USER)), ANNA[:-1], "does not fit its schema"),
        (Schema("AVRO", json.dumps(USER)), ANNA + b"\x00", "1 byte is left"),
        (Schema("AVRO", '{"type": "array", "items": "null"}'), b"\xfe\xff\xff\xff\x0f\x00", "does not fit its schema"),
        (Schema("AVRO", '{"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}'),
         b"\x02" * 100_000 + b"\x00", "does not fit its schema: RecursionError"),
        (Schema("AVRO", "no schema"), b"", "schema cannot be used"),
        (Schema("PROTOBUF", proto("a.proto", text=(1, "string"))), b"\x00\x0a\xff", "does not fit its schema"),
        (Schema("PROTOBUF", proto("a.proto", text=(1, "string"))), b"\x02\x7e", "does not fit its schema"),
        (Schema("PROTOBUF", proto("a.proto", text=(1, "string"))), b"\x01", "does not name a message"),
        (Schema("PROTOBUF", proto("a.proto", text=(1, "string"))), b"\xff\xff", "number of its message is cut off"),
        (Schema("PROTOBUF", proto("a.proto", "gone.proto")), b"\x00", "schema cannot be used"),
        (Schema("PROTOBUF", 'syntax = "proto3";'), b"\x00", "the registry does not give it in compiled form"),
        (Schema("PROTOBUF", "\n\x01A\x12\x04shop"), b"\x00", "the registry does not give it in compiled form"),
        (Schema("PROTOBUF", "abcd"), b"\x00", "schema cannot be used"),
        (Schema("JSON", "{}"), b"{", "does not fit its schema"),
        (Schema("XML", ""), b"", "unknown kind 'XML'"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit_its_schema_is_refused_with_the_reason(schema: Schema, data: bytes, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        decoder_of(schema)(data)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, {"message": "Schema 7 not found"}), "answers 404 to /schemas/ids/7: .*Schema 7 not found"),
        ((200, b"<html>"), "is no JSON object"),
        ((200, {"schemaType": "AVRO"}), "has no schema"),
        ((200, b"x" * (schemas.SCHEMA_BYTES + 1)), "more than 4,194,304 bytes"),
        (httpx.ConnectError("refused"), "does not answer: ConnectError refused"),
        ({"schema": '"int"', "references": [{"name": f"r{n}", "subject": "s", "version": n} for n in range(101)]},
         "needs more than 100 others"),
    ],
)  # fmt: skip
@pytest.mark.trio
async def test_a_registry_that_fails_is_reported_and_not_asked_again_at_once(answer: Any, why: str) -> None:
    others = {f"/subjects/s/versions/{n}": {"schema": '"int"'} for n in range(101)}
    fake = FakeRegistry({"/schemas/ids/7": answer, **others})
    async with fake.open() as registry:
        with pytest.raises(UndecodableError, match=why):
            await registry.decode(HEAD)
        asked = len(fake.asked)
        with pytest.raises(UndecodableError, match=why):
            await registry.decode(HEAD)
        assert len(fake.asked) == asked, "the registry is not asked again at once"


@pytest.mark.trio
async def test_schemas_that_refer_to_each_other_cause_no_endless_loop() -> None:
    reference = {"name": "r", "subject": "s", "version": 1}
    answer = {"schema": '"int"', "references": [reference]}
    fake = FakeRegistry({"/schemas/ids/7": answer, "/subjects/s/versions/1": answer})
    async with fake.open() as registry:
        assert await registry.decode(HEAD + b"\x02") == "1"
