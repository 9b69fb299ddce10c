"""Numbers of things in messages: ``1 record``, ``2 records``."""

from __future__ import annotations


def one_or_many(number: int, one: str, many: str) -> str:
    """The word that fits the number."""
    return one if number == 1 else many


def counted(number: int, noun: str, plural: str | None = None, *, form: str = "") -> str:
    """The number with its noun, whose plural ends in "s" unless given. ``form`` formats the number, such as ``,``."""
    return f"{number:{form}} {one_or_many(number, noun, plural or noun + 's')}"
