"""Checks that topic names are valid and do not collide in metrics (Kafka's ``Topic``)."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.protocol.topic_names import MAX_NAME_LENGTH, is_legal


def name_problem(name: str) -> str | None:
    """The reason why a topic cannot have this name, or None."""
    if not name:
        return "Topic name is illegal, it can't be empty"
    if name in (".", ".."):
        return f"Topic name cannot be '{name}'"
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name is illegal, it can't be longer than {MAX_NAME_LENGTH} characters, topic name: {name}"
    if not is_legal(name):
        return (
            f"Topic name '{name}' is illegal, it contains a character other than ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def colliding(name: str, existing: Iterable[str]) -> str | None:
    """An existing topic whose name equals ``name`` after each ``.`` is replaced by ``_``; None if there is none."""
    folded = name.replace(".", "_")
    if folded == name and "_" not in name:
        return None
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)
