"""The users' callbacks for the outcomes of records, in the order in which the outcomes arrive. No IO.

A batch that is resolved adds the callbacks of its records. They run when the decision about the batch is done.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Callbacks:
    """The callbacks that are due."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], object]] = deque()
        self.contained: type[BaseException] = Exception
        """What a callback may raise without an effect on the caller of ``run``."""

    def add(self, callback: Callable[[], object]) -> None:
        self._due.append(callback)

    def run(self) -> None:
        """Run the callbacks that are due, also those that a callback adds. The error of one is logged."""
        while self._due:
            callback = self._due.popleft()
            try:
                callback()
            except self.contained:
                _log.exception("a callback for the outcome of a record raised an error")
