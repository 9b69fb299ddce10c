"""The outcome of a decision: a response, and the conditions that must hold before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anabranch.controller.context import Context
from anabranch.protocol.errors import ErrorCode

NOT_WRITTEN_MESSAGE = "The change could not be written to ZooKeeper: see the controller's log."
TIMED_OUT_MESSAGE = "The request timed out; the change is recorded and goes on."


class UnreadTopicError(Exception):
    """A request names a topic whose new znode is not in the image yet.

    Nothing was written. The request is decided again after the list of topics was read.
    """


@dataclass(frozen=True, slots=True)
class ResponseWait:
    """One part of a response, complete once ``condition`` holds. Until then a time-out turns the part into an error."""

    condition: Callable[[Context], bool]
    result: Any

    def time_out(self) -> None:
        self.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self.result.error_message = TIMED_OUT_MESSAGE


@dataclass(frozen=True, slots=True)
class AdviceWait(ResponseWait):
    """A wait for advice in a response, for half of the request's time. Without advice the response is the usual one."""

    def time_out(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Outcome:
    """``response`` may be sent once every wait holds, or when ``timeout_ms`` have passed."""

    response: Any
    waits: list[ResponseWait] = field(default_factory=list)
    timeout_ms: int = 0
