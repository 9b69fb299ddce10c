"""State machines as tables: for each state, the states from which it may be entered."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import TypeVar

State = TypeVar("State", bound=enum.Enum)


class IllegalTransitionError(RuntimeError):
    """A transition that the table does not have. The cause is a defect of this program, never a peer or its input."""


def enter(what: str, current: State, target: State, valid_previous: Mapping[State, Collection[State]]) -> State:
    """Return ``target``. Raises ``IllegalTransitionError``, naming ``what``, when ``current`` may not lead to it."""
    if current not in valid_previous[target]:
        raise IllegalTransitionError(f"{what} cannot move from {current.value} to {target.value}")
    return target
