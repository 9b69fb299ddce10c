"""Numbers of things in messages: ``1 record``, ``2 records``."""

from __future__ import annotations

from collections.abc import Sequence


def one_or_many(number: int, one: str, many: str) -> str:
    """The word that fits the number."""
    return one if number == 1 else many


def counted(number: int, noun: str, plural: str | None = None, *, form: str = "") -> str:
    """The number with its noun, whose plural ends in "s" unless given. ``form`` formats the number, such as ``,``."""
    return f"{number:{form}} {one_or_many(number, noun, plural or noun + 's')}"


def named(noun: str, numbers: Sequence[object]) -> str:
    """The numbers as ``listed``, after their noun: ``partition 1``, ``partitions 1, 2``."""
    return f"{one_or_many(len(numbers), noun, noun + 's')} {listed(numbers)}"


def listed(numbers: Sequence[object]) -> str:
    """The first ten numbers, and how many more there are."""
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} and {len(numbers) - 10} more" if len(numbers) > 10 else shown
