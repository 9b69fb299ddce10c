"""Codecs that yield after each item of an array, so that other tasks run while a large message is processed.

The writers of ``generated/`` make them from the same field tables on first use, because only large messages need one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from anabranch.protocol.generate import tables
from anabranch.protocol.generate_decode import DecoderWriter, write_tag_decoder
from anabranch.protocol.generate_encode import EncoderWriter, write_tag_encoder
from anabranch.protocol.generate_source import Source
from anabranch.protocol.primitives import DecodeError, EncodeError, Message
from anabranch.protocol.types import Part

StepDecoder: TypeAlias = Callable[[memoryview], Generator[None, None, tuple[Any, int]]]
StepEncoder: TypeAlias = Callable[[Any, bytearray, list[Part]], Generator[None, None, None]]


@functools.cache
def decoder(cls: type[Message], version: int) -> StepDecoder:
    """The step decoder of one version. Raises DecodeError for a version that ``cls`` does not have."""
    if version not in cls.DECODERS:
        raise DecodeError(f"{cls.__name__} has no version {version}")
    made: StepDecoder = _made(DecoderWriter, cls, version)
    return made


@functools.cache
def encoder(cls: type[Message], version: int) -> StepEncoder:
    """The step encoder of one version. Raises EncodeError for a version that ``cls`` does not have."""
    if version not in cls.ENCODERS:
        raise EncodeError(f"{cls.__name__} has no version {version}")
    made: StepEncoder = _made(EncoderWriter, cls, version)
    return made


def _made(writer: type[DecoderWriter | EncoderWriter], cls: type[Message], version: int) -> Any:
    module, _, constant = cls.TABLE.partition(":")
    table = tables(module)[constant]
    source = Source({"decode": write_tag_decoder, "encode": write_tag_encoder})
    writer(source, version, table.is_flexible(version), in_steps=True).function("in_steps", table.fields, table.name)
    lines = ["from __future__ import annotations"]
    lines += [f"{name} = {packer}" for name, packer in source.struct_formats.items()]
    names = dict(vars(importlib.import_module(f"anabranch.protocol.generated.{module}")))
    text = "\n".join([*lines, *source.tag_lines, *source.lines])
    exec(compile(text, f"<{cls.__name__} v{version} in steps>", "exec"), names)
    return names["in_steps"]
