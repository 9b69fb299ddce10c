"""What a decision that refuses a request comes to."""

from __future__ import annotations

from anabranch.controller.effects import Effects
from anabranch.protocol.errors import ErrorCode


def assert_only_refuses(effects: Effects, code: ErrorCode) -> None:
    """The answer has ``code`` and a message, and nothing is written, sent or waited for."""
    assert effects.response.error_code == code, effects.response
    assert effects.response.error_message
    assert effects == Effects(effects.topic, response=effects.response)
