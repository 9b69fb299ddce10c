"""Writes the flat encoders: one function per layout, with one ``pack`` for each run of fixed-size fields."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.protocol.generate_decode import dotted
from anabranch.protocol.generate_source import ModuleSource, python_type, steps_of
from anabranch.protocol.schema import FIXED_FORMATS, Field, plain_fields, required_elsewhere, tagged_fields


class EncoderWriter:
    """Writes the encoder of one layout of one message; with ``in_steps`` it yields after each item of an array."""

    def __init__(self, source: ModuleSource, version: int, flexible: bool, in_steps: bool = False) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.run: list[tuple[str, str]] = []

    def add(self, code: str, value: str) -> None:
        self.run.append((code, value))

    def flush(self) -> None:
        """Write the collected run of fixed-size fields, if any."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        if codes == "B":
            self.source.line(f"out.append({self.run[0][1]})")
        else:
            self.source.line(f"out += {self.source.packer(codes)}({', '.join(value for _, value in self.run)})")
        self.run.clear()

    # -------------------------------------------------------- structs

    def function(self, name: str, fields: Sequence[Field], cls: str) -> None:
        """Write the encoder of a whole message."""
        source = self.source
        result = steps_of("None") if self.in_steps else "None"
        source.line(f"def {name}(message: {cls}, out: bytearray, parts: list[Part]) -> {result}:")
        with source.indented():
            source.line("yield" if self.in_steps else "")
            self.struct(fields, "message", "")
            source.line("parts.append(out)")
        source.line()

    def struct(self, fields: Sequence[Field], owner: str, path: str) -> None:
        self.refuse_elsewhere(fields, owner, path)
        for f in plain_fields(fields, self.version):
            self.field(f, f"{owner}.{f.name}", path)
        if self.flexible:
            self.tags(fields, owner, path)
        self.flush()

    def refuse_elsewhere(self, fields: Sequence[Field], owner: str, path: str) -> None:
        """Write the check that fields that this version lacks have their defaults."""
        for f in required_elsewhere(fields, self.version):
            self.flush()
            self.source.line(f"if {is_set(f, f'{owner}.{f.name}')}:")
            self.source.line(f'    raise not_in_version("{dotted(path, f.name)}")')

    def field(self, f: Field, value: str, path: str) -> None:
        nullable = self.version in f.nullable
        if not nullable and f.tag is None and python_type(f).endswith("None"):
            self.flush()
            self.source.line(f"if {value} is None:")
            self.source.line(f'    raise not_nullable("{dotted(path, f.name)}")')
        if f.is_array:
            self.array(f, value, path, nullable)
        elif f.type == "uuid":
            self.add("16s", f"{value}.bytes")
        elif f.type in FIXED_FORMATS:
            self.add(FIXED_FORMATS[f.type], value)
        elif f.type == "records":
            self.records(value, nullable)
        else:
            self.variable(f.type, value, nullable)

    def length(self, code: str, length: str, none_if: str | None = None) -> None:
        """Write the length in front of a value. If ``none_if`` is None at run time, the length for null is written."""
        source = self.source
        if not self.flexible:
            null = f"-1 if {none_if} is None else " if none_if else ""
            self.add(code, f"{null}{length}")
            self.flush()
            return
        self.flush()
        null = f"0 if {none_if} is None else " if none_if else ""
        source.line(f"n = {null}{length} + 1")
        source.line("if n < 128:")
        source.line("    out.append(n)")
        source.line("else:")
        source.line("    write_uvarint(out, n)")

    def variable(self, type: str, value: str, nullable: bool) -> None:
        """Write a string or bytes."""
        source = self.source
        raw = value
        if type == "string":
            raw = "raw_or_none" if nullable else "raw"
            null = f"None if {value} is None else " if nullable else ""
            source.line(f"{raw} = {null}{value}.encode()")
        self.length("h" if type == "string" else "i", f"len({raw})", raw if nullable else None)
        if nullable:
            source.line(f"if {raw} is not None:")
        with source.indented(nullable):
            source.line(f"out += {raw}")

    def records(self, value: str, nullable: bool) -> None:
        source = self.source
        source.line(f"records = {value}")
        self.length("i", "len(records)", "records")
        source.line("if records is not None:")
        with source.indented():
            source.line("parts.append(out)")
            source.line("parts.append(records)")
            source.line("out = bytearray()")

    # -------------------------------------------------------- arrays

    def array(self, f: Field, value: str, path: str, nullable: bool) -> None:
        source = self.source
        self.length("i", f"len({value})", value if nullable else None)
        if nullable:
            source.line(f"if {value} is not None:")
        with source.indented(nullable):
            element = f.element_type
            if element in FIXED_FORMATS and element != "uuid":
                source.line(f'out += pack(f">{{len({value})}}{FIXED_FORMATS[element]}", *{value})')
                return
            inner = dotted(path, f.name) + "[]"
            item = dotted(path, f.name).replace("[]", "").replace(".", "_") + "_item"
            source.line(f"for {item} in {value}:")
            with source.indented():
                if f.fields:
                    self.struct(f.fields, item, inner)
                elif element == "uuid":
                    source.line(f"out += {item}.bytes")
                else:
                    self.variable(element, item, nullable=False)
                source.line("yield" if self.in_steps else "")

    # -------------------------------------------------------- tagged fields

    def tags(self, fields: Sequence[Field], owner: str, path: str) -> None:
        source = self.source
        known = tagged_fields(fields, self.version)
        if not known:
            self.add("B", "0")
            return
        self.flush()
        tests = [is_set(f, f"{owner}.{f.name}") for f in known]
        source.line(f"tag_count = {' + '.join(f'(1 if {test} else 0)' for test in tests)}")
        source.line("out.append(tag_count)")
        source.line("if tag_count:")
        with source.indented():
            for f, test in zip(known, tests, strict=True):
                encoder = source.tag_function("encode", f, dotted(path, f.name), self.version)
                source.line(f"if {test}:")
                source.line("    tagged = bytearray()")
                source.line(f"    {encoder}({owner}.{f.name}, tagged)")
                source.line(f"    write_uvarint(out, {f.tag})")
                source.line("    write_uvarint(out, len(tagged))")
                source.line("    out += tagged")


def write_tag_encoder(source: ModuleSource, name: str, f: Field, version: int) -> None:
    """Write the function that encodes the value of a tagged field."""
    writer = EncoderWriter(source, version, True)
    # A struct is only encoded when it is set.
    accepted = f.type if f.fields and not f.is_array else python_type(f)
    source.line(f"def {name}(value: {accepted}, out: bytearray) -> None:")
    with source.indented():
        if f.fields and not f.is_array:
            writer.struct(f.fields, "value", "")
        else:
            writer.field(f, "value", "")
            writer.flush()
    source.line()


def is_set(f: Field, value: str) -> str:
    """The Python condition that the value differs from the default."""
    if f.default is None:
        return f"{value} is not None"
    if f.is_array:
        return f"bool({value})"
    if f.type == "bool":
        return f"not {value}" if f.default else value
    if f.type == "uuid":
        return f"{value} != ZERO_UUID"
    if isinstance(f.default, str):
        return f'{value} != "{f.default}"'
    return f"{value} != {f.default!r}"
