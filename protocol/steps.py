"""Codecs that yield after each item of an array, so that other tasks run while a large message is processed.

The writers of ``generated/`` make these codecs from the same field tables on first use: only large messages need them.
A step is a few microseconds long; a decoder yields ``PAUSE`` after a longer one.
"""

from __future__ import annotations

import functools
import importlib
import struct
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

from anabranch.protocol.decode_budget import BudgetError, DecodeBudget, free_in_steps
from anabranch.protocol.message import Message, reason_of
from anabranch.protocol.primitives import DecodeError, EncodeError
from anabranch.protocol.types import Part

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Steps: TypeAlias = Generator[bool | None, None, T]
StepDecoder: TypeAlias = Callable[[memoryview, DecodeBudget], Steps[tuple[Any, int]]]
StepEncoder: TypeAlias = Callable[[Any, bytearray, list[Part]], Generator[None, None, None]]

LARGE_BYTES: Final = 32 * 1024
"""A message of this size is decoded in steps and within a budget: decoding 1 MiB of items may take 0.1 s."""
_EMBEDDED_ELEMENTS: Final = 50_000
_EMBEDDED_MEMORY_PER_BYTE: Final = 16


def decode_prefix(cls: type[M], data: memoryview, version: int, budget: DecodeBudget) -> Steps[tuple[M, int]]:
    """``cls.decode_prefix`` for a message of many items: yields after each item. Raises DecodeError, BudgetError."""
    failure: DecodeError
    try:
        decoded: tuple[M, int] = yield from decoder(cls, version)(data, budget)  # type: ignore[arg-type]
        budget.check(cls.__name__)
        return decoded
    except (struct.error, IndexError, ValueError) as error:
        # Not raised from here: the traceback of ``error`` holds all that was decoded.
        kind = BudgetError if isinstance(error, BudgetError) else DecodeError
        failure = kind(f"{cls.__name__} v{version}: {reason_of(cls, data, version, error)}")
        freeing = free_in_steps(budget.large_arrays)
        next(freeing)
    yield from freeing
    try:
        raise failure
    finally:
        del failure  # a cycle with its traceback, which holds the frame of the request


def decode_embedded(cls: type[M], data: memoryview, version: int) -> tuple[M, int]:
    """``cls.decode_prefix`` at once, for a message inside of a field or a record; not for one of very many elements."""
    if len(data) < LARGE_BYTES:
        return cls.decode_prefix(data, version)
    budget = DecodeBudget(_EMBEDDED_ELEMENTS, _EMBEDDED_MEMORY_PER_BYTE * len(data))
    decoding = decode_prefix(cls, data, version, budget)
    while True:
        try:
            next(decoding)
        except StopIteration as stop:
            found: tuple[M, int] = stop.value
            return found


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
    from anabranch.protocol.generate_source import ModuleSource
    from anabranch.protocol.schema import table_named

    table = table_named(cls.TABLE)
    write_decoder = functools.partial(write_tag_decoder, in_steps=True)
    source = ModuleSource({"decode": write_decoder, "encode": write_tag_encoder})
    writer = (DecoderWriter if decodes else EncoderWriter)(source, version, table.is_flexible(version), in_steps=True)
    writer.function("in_steps", table.fields, table.name)
    lines = ["from __future__ import annotations"]
    lines += [f"{name} = {packer}" for name, packer in source.struct_formats.items()]
    names = dict(vars(importlib.import_module(cls.__module__)))
    text = "\n".join([*lines, *source.tag_lines, *source.lines])
    exec(compile(text, f"<{cls.__name__} v{version} in steps>", "exec"), names)
    return names["in_steps"]
