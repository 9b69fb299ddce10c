"""Builds source text: indentation, the ``struct`` constants it uses, and the helper functions in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from anabranch.protocol.schema import Field

_PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "int",
    "uint16": "int",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "Part",
}

TagWriter = Callable[["ModuleSource", str, Field, int], None]


def python_type(f: Field) -> str:
    """The annotation of a field's attribute, over all versions."""
    element = _PYTHON_TYPES.get(f.element_type, f.element_type)
    text = f"list[{element}]" if f.is_array else element
    nullable = f.nullable.first <= f.nullable.last or f.default is None
    return f"{text} | None" if nullable else text


def steps_of(result: str) -> str:
    """The annotation of a generator that yields between its steps and returns a ``result``."""
    return f"Generator[None, None, {result}]"


class ModuleSource:
    """The lines of one generated module, and the constants and functions they refer to."""

    def __init__(self, tag_writers: dict[str, TagWriter]) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.struct_formats: dict[str, str] = {}
        self.tag_writers = tag_writers
        self.tag_functions: dict[tuple[object, ...], str] = {}
        self.tag_lines: list[str] = []

    def line(self, text: str | None = None) -> None:
        """Add a line. None adds an empty line; an empty text adds nothing."""
        if text is None:
            self.lines.append("")
        elif text:
            self.lines.append("    " * self.depth + text)

    def lines_of(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def indented(self, really: bool = True) -> Iterator[None]:
        self.depth += really
        yield
        self.depth -= really

    def unpacker(self, codes: str) -> str:
        return self._struct("unpack", codes, "unpack_from")

    def packer(self, codes: str) -> str:
        return self._struct("pack", codes, "pack")

    def _struct(self, verb: str, codes: str, method: str) -> str:
        name = f"_{verb}_{codes.replace('?', 't').replace('16s', 'u')}"
        self.struct_formats[name] = f'Struct(">{codes}").{method}'
        return name

    def tag_function(self, verb: str, f: Field, path: str, version: int) -> str:
        """The name of the function for the value of a tagged field. The first call writes the function."""
        key = (verb, path, f.type, f.tag)
        if key not in self.tag_functions:
            suffix = path.replace("[]", "").replace(".", "_")
            name = f"_{verb}_tag_{suffix}"
            while name in self.tag_functions.values():
                name += "_"
            self.tag_functions[key] = name
            inner = ModuleSource(self.tag_writers)
            inner.struct_formats = self.struct_formats
            inner.tag_functions = self.tag_functions
            inner.tag_lines = self.tag_lines
            self.tag_writers[verb](inner, name, f, version)
            self.tag_lines.extend(inner.lines)
        return self.tag_functions[key]
