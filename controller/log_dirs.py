"""Handles failed disks: a broker gets all its partitions again, and reports replicas that it cannot serve (KIP-112)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas.log_dir_event import LogDirEvent
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


def on_log_dirs_failed(context: Context, notices: Mapping[str, bytes]) -> Decisions[None]:
    """Send everything to the brokers that the notices name, and remove the notices."""
    brokers: dict[int, None] = {}
    for path, data in notices.items():
        try:
            brokers[LogDirEvent.decode(path, data).broker] = None
        except MalformedZnodeError as error:
            logger.error("log_dir.notice_malformed", error=str(error))
    for broker in brokers:
        if broker in context.image.brokers:
            logger.warning("log_dir.changed", broker=broker)
            context.batch.everything_to(broker)
    yield Effects(groups=[[DeleteOp(path)] for path in notices])
