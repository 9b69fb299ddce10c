"""A user's assignor. An error in it, or a result that is no assignment, is a ``ValueError`` that names it.

Assignors run in the background task of the member. A ``ValueError`` is the error of the user's next call there; any
other error would end the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anabranch.client import arguments
from anabranch.client.group.assignors.model import Assignment, Assignor, Members, PartitionCounts
from anabranch.zk_schemas.config_def import ConfigError

T = TypeVar("T")
_assignment = arguments.mapping(arguments.text, arguments.each(arguments.topic_partition))


class JudgedAssignor(Assignor):
    """Raises ``ConfigError`` for an assignor without a name."""

    def __init__(self, theirs: Assignor) -> None:
        try:
            self.name = arguments.text("name", getattr(theirs, "name", None))  # type: ignore[misc]
        except (TypeError, ValueError) as error:
            raise ConfigError("partition_assignment_strategy", f"{arguments.shown(theirs)}: {error}") from None
        self.cooperative = bool(theirs.cooperative)  # type: ignore[misc]
        self._theirs = theirs

    def user_data(self, generation_id: int) -> bytes | None:
        return self._judged(lambda: arguments.blob("user_data", self._theirs.user_data(generation_id)))

    def assign(self, partition_counts: PartitionCounts, members: Members) -> Assignment:
        return self._judged(lambda: _assignment("assignment", self._theirs.assign(partition_counts, members)))

    def _judged(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:  # the user's code
            raise ValueError(f"the assignor {self.name}: {error!r}") from error
