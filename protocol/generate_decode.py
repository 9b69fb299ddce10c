"""Writes the flat decoders: one function per layout, with one ``unpack_from`` for each run of fixed-size fields.

A length prefix after a run is read together with the run. Of a compact length, only the first byte is read with the
run; a byte below 128 is the whole length.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.protocol.decode_budget import (
    LARGEST_SINGLE,
    LIST_BYTES,
    NUMBER_BYTES,
    SMALLEST_SINGLE,
    STRUCT_BYTES,
    UUID_BYTES,
    VIEW_BYTES,
)
from anabranch.protocol.generate_source import ModuleSource, python_type
from anabranch.protocol.schema import FIXED_FORMATS, FIXED_SIZES, Field, min_bytes, plain_fields, tagged_fields


class DecoderWriter:
    """Writes the decoder of one layout of one message.

    With ``in_steps`` it yields after each item of an array, and charges all objects to ``budget``, a ``DecodeBudget``.
    """

    def __init__(self, source: ModuleSource, version: int, flexible: bool, in_steps: bool = False) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.run: list[tuple[str, str]] = []
        self.after_run: list[str] = []

    # -------------------------------------------------------- runs of fixed-size values

    def add(self, code: str, target: str) -> None:
        self.run.append((code, target))

    def flush(self) -> None:
        """Write the collected run of fixed-size fields, if any."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        comma = "," if len(self.run) == 1 else ""
        size = sum(16 if code == "16s" else FIXED_WIDTHS[code] for code, _ in self.run)
        if codes == "B":
            self.source.line(f"{targets} = data[pos]")
        else:
            self.source.line(f"{targets}{comma} = {self.source.unpacker(codes)}(data, pos)")
        self.source.line(f"pos += {size}")
        if self.in_steps:
            self.charge_numbers()
        self.source.lines_of(self.after_run)
        self.run.clear()
        self.after_run.clear()

    def charge_numbers(self) -> None:
        """Share or charge the run's numbers, except those that CPython has one object for."""
        for code, target in self.run:
            if (code in "hHiq" and target != "n") or code == "b":
                self.source.line(f"if not {SMALLEST_SINGLE} <= {target} <= {LARGEST_SINGLE}:")
                self.source.line(f"    {target} = budget.shared({target})")

    # -------------------------------------------------------- structs

    def function(self, name: str, fields: Sequence[Field], cls: str) -> None:
        """Write the decoder of a whole message, or of the value of a tagged field."""
        source = self.source
        self.signature(name, cls)
        with source.indented():
            if self.in_steps:
                source.line("yield None")
                source.line(f"budget.memory -= {struct_bytes(fields, self.version)}")
            source.line("size = len(data)" if _needs_size(fields, self.version) else "")
            source.line("pos = 0")
            self.struct(fields, "")
            self.construct("decoded = ", fields, cls, "", "")
            source.line("return decoded, pos")
        source.line()

    def signature(self, name: str, result: str) -> None:
        result = f"tuple[{result}, int]"
        if self.in_steps:
            self.source.line(f"def {name}(data: memoryview, budget: DecodeBudget) -> Steps[{result}]:")
        else:
            self.source.line(f"def {name}(data: memoryview) -> {result}:")

    def struct(self, fields: Sequence[Field], path: str) -> None:
        """Write statements that leave every field in a local variable."""
        for f in plain_fields(fields, self.version):
            self.field(f, path)
        if self.flexible:
            self.tags(fields, path)
        self.flush()

    def construct(self, before: str, fields: Sequence[Field], cls: str, path: str, after: str) -> None:
        """Write a call of the class with the local variables, one argument per line."""
        self.source.line(f"{before}{cls}(")
        for f in fields:
            if self.version in f.versions:
                self.source.line(f"    {f.name}={local(path, f.name)},")
        self.source.line(f"){after}")

    def field(self, f: Field, path: str) -> None:
        target = local(path, f.name)
        if f.is_array:
            self.array(f, path, target)
        elif f.type == "uuid":
            self.add("16s", f"{target}_bytes")
            self.after_run.append(f"{target} = UUID(bytes={target}_bytes)")
        elif f.type in FIXED_FORMATS:
            self.add(FIXED_FORMATS[f.type], target)
        else:
            self.length("h" if f.type == "string" else "i")
            self.variable(f.type, target, dotted(path, f.name), self.version in f.nullable)

    def length(self, code: str) -> None:
        """Write statements that leave a length in ``n``, -1 for null."""
        self.add("B" if self.flexible else code, "n")
        self.flush()
        if self.flexible:
            self.source.line("if n > 127:")
            self.source.line("    n, pos = read_uvarint(data, pos - 1)")
            self.source.line("n -= 1")

    def variable(self, type: str, target: str, path: str, nullable: bool) -> None:
        """Write the decoding of a string, bytes or records of ``n`` bytes."""
        value = {"string": 'str(data[pos:end], "utf-8")', "bytes": "bytes(data[pos:end])", "records": "data[pos:end]"}
        source = self.source
        if nullable:
            source.line("if n == -1:")
            source.line(f"    {target} = None")
            source.line("else:")
        with source.indented(nullable):
            source.line("end = pos + n")
            source.line("if n < 0 or end > size:")
            source.line(f'    raise bad_length("{path}", n, pos, size)')
            source.line(f"{target} = {value[type]}")
            source.line("pos = end")
            if self.in_steps:
                self.charge_variable(type, target)

    def charge_variable(self, type: str, target: str) -> None:
        if type == "records":
            self.source.line(f"budget.memory -= {VIEW_BYTES}")
            return
        # CPython has one object for "" and for each text of one Latin-1 character.
        self.source.line("if n > 1:")
        self.source.line(f"    budget.memory -= {target}.__sizeof__() + {_ROUNDED_UP_BY}")

    # -------------------------------------------------------- arrays

    def array(self, f: Field, path: str, target: str) -> None:
        source = self.source
        self.length("i")
        nullable = self.version in f.nullable
        source.line(f"{target}: {python_type(f)}" if nullable else "")
        if nullable:
            source.line("if n == -1:")
            source.line(f"    {target} = None")
            source.line("else:")
        with source.indented(nullable):
            least = min_bytes(f, self.version, self.flexible)
            times = f" * {least}" if least > 1 else ""
            source.line(f"if n < 0 or n{times} > size - pos:")
            source.line(f'    raise bad_length("{dotted(path, f.name)}", n, pos, size)')
            self.elements(f, path, target)

    def elements(self, f: Field, path: str, target: str) -> None:
        source = self.source
        element = f.element_type
        inner = dotted(path, f.name) + "[]"
        if element in FIXED_FORMATS:
            self.fixed_elements(element, inner, target)
            return
        if self.in_steps:
            source.line(f'{target} = budget.new_array("{inner}", n, {struct_bytes(f.fields, self.version)})')
        else:
            source.line(f"{target} = []")
        # A variable of its own: mypyc reads the bound of a range again in every iteration, and n changes in the loop.
        source.line(f"{target}_count = n")
        source.line(f"for _ in range({target}_count):")
        with source.indented():
            if f.fields:
                self.struct(f.fields, inner)
                self.construct(f"{target}.append(", f.fields, element, inner, ")")
            else:
                item = local(path, f.name) + "_item"
                self.length("h" if element == "string" else "i")
                self.variable(element, item, inner, nullable=False)
                source.line(f"{target}.append({item})")
            if self.in_steps:
                source.line("if budget.memory < 0:")
                source.line(f'    budget.check("{inner}")')
                source.line("yield None")

    def fixed_elements(self, element: str, inner: str, target: str) -> None:
        source = self.source
        size = FIXED_SIZES[element]
        if self.in_steps and element == "uuid":
            source.line(f'{target} = yield from budget.uuids("{inner}", data, pos, n)')
        elif self.in_steps:
            code = FIXED_FORMATS[element]
            source.line(f'{target} = yield from budget.numbers("{inner}", data, pos, n, "{code}", {size})')
        elif element == "uuid":
            source.line(f"{target} = [UUID(bytes=bytes(data[at : at + 16])) for at in range(pos, pos + 16 * n, 16)]")
        else:
            source.line(f'{target} = list(unpack_from(f">{{n}}{FIXED_FORMATS[element]}", data, pos))')
        source.line(f"pos += n * {size}" if size > 1 else "pos += n")

    # -------------------------------------------------------- tagged fields

    def tags(self, fields: Sequence[Field], path: str) -> None:
        source = self.source
        known = tagged_fields(fields, self.version)
        self.add("B", "n")
        self.flush()
        for f in known:
            source.line(f"{local(path, f.name)}: {python_type(f)} = {default_source(f)}")
        source.line("if n:")
        with source.indented():
            if not known:
                source.line(
                    "_, pos = budget.read_tags(data, pos, n)" if self.in_steps else "pos = skip_tags(data, pos, n)"
                )
                return
            numbers = "(" + ", ".join(str(f.tag) for f in known) + ",)"
            if self.in_steps:
                source.line(f"tags, pos = budget.read_tags(data, pos, n, {numbers})")
            else:
                source.line(f"tags, pos, _ = read_tags(data, pos, n, {numbers})")
            for f in known:
                source.line(f"value = tags.get({f.tag})")
                source.line("if value is not None:")
                where = dotted(path, f.name)
                decoder = self.source.tag_function("decode", f, where, self.version)
                decoded = f"(yield from {decoder}(value, budget))" if self.in_steps else f"{decoder}(value)"
                source.line(f'    {local(path, f.name)} = whole({decoded}, value, "{where}")')


_ROUNDED_UP_BY = 8
"""The mean of what an allocation of variable size is longer than its object."""

FIXED_WIDTHS = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8}


def struct_bytes(fields: Sequence[Field], version: int) -> int:
    """The memory of one struct with its lists and UUIDs; 0 for no fields. Other values are charged one by one."""
    if not fields:
        return 0
    total = STRUCT_BYTES + 8 * len(fields)
    for f in fields:
        if f.is_array and (f.default is not None or version in f.versions):
            total += LIST_BYTES
        elif f.type == "uuid":
            total += UUID_BYTES
        elif f.type == "float64":
            total += NUMBER_BYTES
    return total


def write_tag_decoder(source: ModuleSource, name: str, f: Field, version: int, in_steps: bool = False) -> None:
    """Write the function that decodes the value of a tagged field. The value must use all of the field's bytes."""
    writer = DecoderWriter(source, version, True, in_steps)
    if f.fields and not f.is_array:
        writer.function(name, f.fields, f.type)
        return
    writer.signature(name, python_type(f))
    with source.indented():
        source.line("yield None" if in_steps else "")
        if f.type not in FIXED_FORMATS:
            source.line("size = len(data)")
        source.line("pos = 0")
        writer.field(f, "")
        writer.flush()
        source.line(f"return {local('', f.name)}, pos")
    source.line()


def _needs_size(fields: Sequence[Field], version: int) -> bool:
    return any(f.is_array or f.type not in FIXED_FORMATS for f in plain_fields(fields, version))


def dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_RESERVED = frozenset({"data", "size", "pos", "end", "n", "tags", "value", "type", "id"})


def local(path: str, name: str) -> str:
    """The local variable of a field: its path with underscores."""
    text = dotted(path, name).replace("[]", "").replace(".", "_")
    return text + "_" if text in _RESERVED else text


def default_source(f: Field) -> str:
    """The default of a field as Python source."""
    if f.is_array and f.default is not None:
        return "EMPTY"
    if f.type == "uuid":
        return "ZERO_UUID"
    return f'"{f.default}"' if isinstance(f.default, str) else repr(f.default)
