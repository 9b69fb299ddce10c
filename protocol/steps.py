"""Codecs that yield after each item of an array, so that other tasks run while a large message is processed.

The writers of ``generated/`` make these codecs from the same field tables on first use: only large messages need them.
"""

from __future__ import annotations

import functools
import importlib
import struct
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from anabranch.protocol.message import Message, reason_of
from anabranch.protocol.primitives import DecodeError, EncodeError
from anabranch.protocol.types import Part

M = TypeVar("M", bound=Message)
StepDecoder: TypeAlias = Callable[[memoryview], Generator[None, None, tuple[Any, int]]]
StepEncoder: TypeAlias = Callable[[Any, bytearray, list[Part]], Generator[None, None, None]]


def decode_prefix(cls: type[M], data: memoryview, version: int) -> Generator[None, None, tuple[M, int]]:
    """``cls.decode_prefix`` for a message of many items: yields after each item."""
    try:
        decoded: tuple[M, int] = yield from decoder(cls, version)(data)  # type: ignore[arg-type]
    except (struct.error, IndexError, ValueError) as error:
        raise DecodeError(f"{cls.__name__} v{version}: {reason_of(cls, data, version, error)}") from error
    return decoded


def encode_into(message: Message, version: int, out: bytearray, parts: list[Part]) -> Generator[None, None, None]:
    """``message.encode_into`` for many items: yields after each item. The message must not change meanwhile."""
    try:
        yield from encoder(type(message), version)(message, out, parts)  # type: ignore[arg-type]
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise EncodeError(f"{type(message).__name__} v{version}: {error}") from error


@functools.cache
def decoder(cls: type[Message], version: int) -> StepDecoder:
    """The step decoder of one version. Raises DecodeError for a version that ``cls`` does not have."""
    if version not in cls.DECODERS:
        raise DecodeError(f"{cls.__name__} has no version {version}")
    made: StepDecoder = _made(cls, version, decodes=True)
    return made


@functools.cache
def encoder(cls: type[Message], version: int) -> StepEncoder:
    """The step encoder of one version. Raises EncodeError for a version that ``cls`` does not have."""
    if version not in cls.ENCODERS:
        raise EncodeError(f"{cls.__name__} has no version {version}")
    made: StepEncoder = _made(cls, version, decodes=False)
    return made


def _made(cls: type[Message], version: int, *, decodes: bool) -> Any:
    # Most processes never see a large message, and need none of these.
    from anabranch.protocol.generate_decode import DecoderWriter, write_tag_decoder
    from anabranch.protocol.generate_encode import EncoderWriter, write_tag_encoder
    from anabranch.protocol.generate_source import Source
    from anabranch.protocol.schema import table_named

    table = table_named(cls.TABLE)
    source = Source({"decode": write_tag_decoder, "encode": write_tag_encoder})
    writer = (DecoderWriter if decodes else EncoderWriter)(source, version, table.is_flexible(version), in_steps=True)
    writer.function("in_steps", table.fields, table.name)
    lines = ["from __future__ import annotations"]
    lines += [f"{name} = {packer}" for name, packer in source.struct_formats.items()]
    names = dict(vars(importlib.import_module(cls.__module__)))
    text = "\n".join([*lines, *source.tag_lines, *source.lines])
    exec(compile(text, f"<{cls.__name__} v{version} in steps>", "exec"), names)
    return names["in_steps"]
