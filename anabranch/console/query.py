"""The query of a page: what its URL or its form asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from anabranch.console.records import is_number


class Query(Mapping[str, str]):
    """The query string of a URL; each name has one value."""

    def __init__(self, text: str) -> None:
        self._values = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def number(self, name: str, default: int, most: int = 2**31) -> int:
        """A number from 0 to ``most``. Raises ``BadQueryError``."""
        text = self.get(name) or str(default)
        if not is_number(text) or int(text) > most:
            raise BadQueryError(f"{name} is {text!r}: a number from 0 to {most:,} is needed")
        return int(text)


class BadQueryError(Exception):
    """A query that makes no sense; the message gives the reason."""
