"""Decodes records that begin with the id of a schema in a registry: Avro, Protobuf and JSON Schema.

The registry has Confluent's REST API. Such a key or value is a zero byte, the id (four bytes), and the data. In
Protobuf the path of the message within its file is between id and data (Confluent, "Schema Registry: Wire format").
"""

from __future__ import annotations

import base64
import decimal
import io
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import anyio
import avro.io
import avro.name
import avro.schema
import httpx
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)

from anabranch.protocol.plurals import counted, one_or_many

DECODED_BYTES = 1024 * 1024
"""A larger key or value is not decoded."""
SCHEMA_BYTES = 4 * 1024 * 1024
"""The largest size in bytes of a registry's response."""
REFERENCES = 100
"""The largest number of other schemas that a schema may need."""
KEPT_SCHEMAS = 1_000
REGISTRY_TIMEOUT_S = 3.0
AGAIN_S = 10.0
"""The pause after a failed request for a schema, before the next request for it."""
_HEAD_BYTES = 5
_KNOWN_FILES = (
    any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2, timestamp_pb2,
    type_pb2, wrappers_pb2,
)  # fmt: skip
"""Protobuf's own files, which no registry has. Each file comes after the files that it imports."""
# An item of an Avro array may have zero bytes, so the size of the data does not limit the number of items.
os.environ.setdefault("AVRO_MAX_COLLECTION_ITEMS", "100000")

Decoder: TypeAlias = Callable[[bytes], str]
"""Decodes the data after the id to JSON. Raises ``UndecodableError``."""


class UndecodableError(Exception):
    """The reason why a key or value cannot be decoded."""


class Schema(NamedTuple):
    """A schema; ``kind`` is AVRO, PROTOBUF or JSON.

    ``references`` are the other schemas that the schema needs, by name. Each comes before the schemas that need it.
    """

    kind: str
    text: str
    references: Mapping[str, str] = {}


def split(data: bytes) -> tuple[int, bytes]:
    """The id of the schema, and the data after it. Raises ``UndecodableError``."""
    if len(data) < _HEAD_BYTES or data[0] != 0:
        raise UndecodableError("it does not begin with the id of a schema")
    if len(data) > DECODED_BYTES:
        raise UndecodableError(f"it has {len(data):,} bytes; at most {DECODED_BYTES:,} are decoded")
    return int.from_bytes(data[1:_HEAD_BYTES]), data[_HEAD_BYTES:]


def decoder_of(schema: Schema) -> Decoder:
    """The decoder for a schema. Raises ``UndecodableError`` for a schema that cannot be used."""
    make = {"AVRO": _avro, "PROTOBUF": _protobuf, "JSON": lambda _: _json}.get(schema.kind)
    if make is None:
        raise UndecodableError(f"its schema is of the unknown kind {schema.kind!r}")
    decode = _explained("its schema cannot be used", make, schema)
    return lambda data: _explained("it does not fit its schema", decode, data)


def _explained(what: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except UndecodableError:
        raise
    except Exception as error:  # the libraries raise errors of any kind for arbitrary bytes
        raise UndecodableError(f"{what}: {type(error).__name__} {error}"[:300]) from error


def _json(data: bytes) -> str:
    return json.dumps(json.loads(data), indent=2, ensure_ascii=False)


def _avro(schema: Schema) -> Decoder:
    names = avro.name.Names()
    for text in schema.references.values():
        avro.schema.make_avsc_object(json.loads(text), names)
    parsed = avro.schema.make_avsc_object(json.loads(schema.text), names)

    def decode(data: bytes) -> str:
        file = io.BytesIO(data)
        found = avro.io.DatumReader(parsed).read(avro.io.BinaryDecoder(file))
        if left := len(data) - file.tell():
            rest = f"{counted(left, 'byte', form=',')} {one_or_many(left, 'is', 'are')} left"
            raise UndecodableError(f"it does not fit its schema: {rest}")
        return json.dumps(found, indent=2, ensure_ascii=False, default=_other)

    return decode


def _other(value: object) -> str:
    """The text for values that JSON does not have: bytes, and the logical types of Avro."""
    if isinstance(value, bytes):
        return value.hex(" ")
    return format(value, "f") if isinstance(value, decimal.Decimal) else str(value)


def _protobuf(schema: Schema) -> Decoder:
    pool = descriptor_pool.DescriptorPool()
    known = {module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in _KNOWN_FILES}
    others = {name: _compiled(text) for name, text in schema.references.items()}
    for name, serialized in (known | others | known).items():
        _add(pool, name, serialized)
    file = _add(pool, "", _compiled(schema.text))

    def decode(data: bytes) -> str:
        path, at = _message_path(data)
        messages: Any = file.message_types_by_name.values()
        descriptor = None
        for index in path:
            descriptor = list(messages)[index]
            messages = descriptor.nested_types
        message = message_factory.GetMessageClass(descriptor)()
        message.ParseFromString(data[at:])
        return str(json_format.MessageToJson(message, preserving_proto_field_name=True, ensure_ascii=False))

    return decode


def _compiled(text: str) -> bytes:
    """The compiled schema in the base64 text ``text``; empty if ``text`` is a ``.proto`` file."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _add(pool: Any, name: str, serialized: bytes) -> Any:
    """Add a file to the pool and return it; its name is ``name`` unless that is empty."""
    if not serialized:
        raise UndecodableError("its schema cannot be used: the registry does not give it in compiled form")
    file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
    file.name = name or file.name or "schema.proto"
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(file.name)


def _message_path(data: bytes) -> tuple[list[int], int]:
    """The indexes of nested messages, the outermost first, and the position after them. A count of 0 means [0]."""
    count, at = _zigzag(data, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= REFERENCES:
        raise UndecodableError("it does not name a message of its schema")
    path = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        if index < 0:
            raise UndecodableError("it does not name a message of its schema")
        path.append(index)
    return path, at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(data) and shift < 35:
        found |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return found >> 1 ^ -(found & 1), at
    raise UndecodableError("the number of its message is cut off or too long")


class Registry:
    """A schema registry at ``url``, which may have a user and a password. Use it with ``async with``."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` replaces the network in tests."""
        self._url = url.rstrip("/")
        self._http = httpx.AsyncClient(timeout=REGISTRY_TIMEOUT_S, transport=transport)
        self._decoders: dict[int, Decoder] = {}
        self._failed: dict[int, tuple[float, UndecodableError]] = {}
        self._away = -AGAIN_S, UndecodableError()
        self._lock = anyio.Lock()

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def decode(self, data: bytes) -> str:
        """The data as JSON for people. Raises ``UndecodableError``."""
        schema_id, behind = split(data)
        async with self._lock:
            if schema_id not in self._decoders:
                await self._learn(schema_id)
        return self._decoders[schema_id](behind)

    async def _learn(self, schema_id: int) -> None:
        now = time.monotonic()
        for at_s, error in (self._failed.get(schema_id, self._away), self._away):
            if now < at_s + AGAIN_S:
                raise error
        try:
            decoder = decoder_of(await self._schema(schema_id))
        except UndecodableError as error:
            _kept(self._failed)[schema_id] = now, error
            raise
        except httpx.HTTPError as error:
            wrong = UndecodableError(f"the schema registry does not answer: {type(error).__name__} {error}"[:300])
            self._away = now, wrong
            raise wrong from error
        _kept(self._decoders)[schema_id] = decoder

    async def _schema(self, schema_id: int) -> Schema:
        path = f"/schemas/ids/{schema_id}"
        answer = await self._get(path)
        kind = answer.get("schemaType", "AVRO")
        suffix = ""
        # Confluent's Python serializers register compiled schemas. Without ``format``, Apicurio returns compiled
        # schemas; it may refuse the parameter.
        if kind == "PROTOBUF" and not _compiled(_text(answer)):
            suffix = "?format=serialized"
            answer = await self._get(path + suffix)
        references: dict[str, str] = {}
        await self._add_references(answer, suffix, references)
        return Schema(kind, _text(answer), references)

    async def _add_references(self, answer: Mapping[str, Any], suffix: str, found: dict[str, str]) -> None:
        """Add the referenced schemas, depth first, so that each comes after the schemas that it needs."""
        for reference in answer.get("references") or ():
            name, subject, version = (str(reference.get(field)) for field in ("name", "subject", "version"))
            if name in found:
                continue
            if len(found) >= REFERENCES:
                raise UndecodableError(f"its schema needs more than {REFERENCES} others")
            found[name] = ""
            needed = await self._get(f"/subjects/{quote(subject, safe='')}/versions/{quote(version)}{suffix}")
            await self._add_references(needed, suffix, found)
            del found[name]
            found[name] = _text(needed)

    async def _get(self, path: str) -> dict[str, Any]:
        async with self._http.stream("GET", self._url + path) as response:
            body = b""
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > SCHEMA_BYTES:
                    raise UndecodableError(f"the registry's answer to {path} has more than {SCHEMA_BYTES:,} bytes")
            if response.status_code != httpx.codes.OK:
                body_text = re.sub(r"\s+", " ", body[:200].decode(errors="replace"))
                raise UndecodableError(f"the registry answers {response.status_code} to {path}: {body_text}")
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UndecodableError(f"the registry's answer to {path} is no JSON object")
        return found


def _text(answer: Mapping[str, Any]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise UndecodableError("the registry's answer has no schema")
    return text


def _kept(one: dict[int, Any]) -> dict[int, Any]:
    """Remove the oldest entries of the cache ``one`` until another entry fits."""
    while len(one) >= KEPT_SCHEMAS:
        del one[next(iter(one))]
    return one
