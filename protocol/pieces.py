"""Encoders of a response in pieces: what stands before an array, its items, what stands after it.

With them the items of a long response are encoded as they are made, before the last of them is known. They are made
from the field tables on first use, as in ``steps``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from anabranch.protocol.message import Message
from anabranch.protocol.schema import Field, plain_fields, table_named

Encoder: TypeAlias = Callable[[Any, bytearray], None]


class Level(NamedTuple):
    """The encoders of a struct around one of its arrays."""

    array: str
    before: Encoder
    after: Encoder


class Pieces(NamedTuple):
    """The encoders of a message around an array, of the array's items around an inner array, and so on."""

    levels: tuple[Level, ...]
    item: Encoder
    """Encodes an item of the innermost array."""
    length: Callable[[int, bytearray], None]
    """Encodes the number of items of an array."""


@functools.cache
def pieces(cls: type[Message], version: int, path: tuple[str, ...]) -> Pieces:
    """The encoders for the arrays ``path``, from the outermost to the innermost. ``version`` has all of them."""
    # Most processes never see a large request, and need none of these.
    from anabranch.protocol.generate_decode import dotted
    from anabranch.protocol.generate_encode import EncoderWriter, write_tag_encoder
    from anabranch.protocol.generate_source import ModuleSource

    table = table_named(cls.TABLE)
    flexible = table.is_flexible(version)
    source = ModuleSource({"encode": write_tag_encoder})

    def write(name: str, owner: Sequence[Field], part: Sequence[Field], where: str, *, is_start: bool) -> None:
        """Write the function that encodes the fields ``part``, which stand before or after an array of their struct."""
        writer = EncoderWriter(source, version, flexible)
        source.line(f"def {name}(value, out):")
        with source.indented():
            source.line("pass")
            if is_start:
                writer.refuse_elsewhere(owner, "value", where)
            for f in part:
                writer.field(f, f"value.{f.name}", where)
            if flexible and not is_start:
                writer.tags(owner, "value", where)
            writer.flush()

    fields: Sequence[Field] = table.fields
    where = ""
    for depth, array in enumerate(path):
        plain = plain_fields(fields, version)
        at = next(number for number, f in enumerate(plain) if f.name == array)
        write(f"before_{depth}", fields, plain[:at], where, is_start=True)
        write(f"after_{depth}", fields, plain[at + 1 :], where, is_start=False)
        found = plain[at]
        fields, where = found.fields, dotted(where, array) + "[]"
    writer = EncoderWriter(source, version, flexible)
    source.line("def item(value, out):")
    with source.indented():
        writer.struct(found.fields, "value", where)
    source.line("def length(n, out):")
    with source.indented():
        writer.length("i", "n")
    names = dict(vars(importlib.import_module(cls.__module__)))
    constants = [f"{name} = {packer}" for name, packer in source.struct_formats.items()]
    text = "\n".join(["from __future__ import annotations", *constants, *source.tag_lines, *source.lines])
    exec(compile(text, f"<{cls.__name__} v{version} in pieces>", "exec"), names)
    levels = tuple(Level(array, names[f"before_{n}"], names[f"after_{n}"]) for n, array in enumerate(path))
    return Pieces(levels, names["item"], names["length"])
