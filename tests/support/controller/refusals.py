"""The check of a decision that refuses a request."""

from __future__ import annotations

from anabranch.controller.effects import Effects
from anabranch.protocol.errors import ErrorCode


def assert_only_refuses(effects: Effects, code: ErrorCode) -> None:
    """Check that the response has ``code`` and a message, and that the controller writes, sends and awaits nothing."""
    assert effects.response.error_code == code, effects.response
    assert effects.response.error_message
    assert effects == Effects(effects.topic, response=effects.response)
