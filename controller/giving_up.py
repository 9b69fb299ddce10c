"""Gives up steps that cannot be written: logs and counts them. The controller continues with other events.

A request that is too long for ZooKeeper stays too long, so it is not repeated. But if the connection was lost at every
attempt, the write may succeed later. So after a while the controller reads the whole cluster and tries once more.
"""

from __future__ import annotations

import structlog

from anabranch.controller.context import Context
from anabranch.runtime.env import ZkError, ZkRequestTooLargeError

logger = structlog.get_logger(__name__)


def give_up(context: Context, step: str, error: ZkError) -> None:
    """Leave ``step`` undone. The znodes are as they were before the step."""
    logger.error("step.given_up", step=step, error=str(error))
    context.metrics.given_up_steps.add(type(error).__name__)
    if not isinstance(error, ZkRequestTooLargeError):
        context.events.read_again_later()
