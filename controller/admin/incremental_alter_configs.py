"""IncrementalAlterConfigs (44): change single config keys of topics and brokers (KIP-339).

``alter_configs`` decides whether the changed overrides are allowed, and writes them.
"""

from __future__ import annotations

import enum

from anabranch.controller.admin.alter_configs import Resource, answer_each
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions
from anabranch.controller.outcome import Outcome
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from anabranch.zk_schemas.config_def import ConfigType


class Operation(enum.IntEnum):
    """An operation of IncrementalAlterConfigs on one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest, version: int
) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    responses = yield from answer_each(context, request, changed_keys, AlterConfigsResourceResponse)
    return Outcome(IncrementalAlterConfigsResponse(responses=responses))


def changed_keys(resource: Resource, changes: list[AlterableConfig]) -> dict[str, str | None]:
    """The overrides with ``changes`` applied. Raises ``KafkaError``."""
    config: dict[str, str | None] = dict(resource.znode.config)
    for change in changes:
        key = resource.table.get(change.name)
        if change.config_operation == Operation.DELETE:
            config.pop(change.name, None)
        elif change.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {change.name}.")
        elif change.config_operation == Operation.SET:
            config[change.name] = change.value
        elif change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
            if key is None or key.type is not ConfigType.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Only a list can be appended to or subtracted from, not {change.name}."
                )
            present = dict.fromkeys(key.parse(config.get(change.name) or key.format(key.default) or ""))
            items = dict.fromkeys(key.parse(change.value))
            if change.config_operation == Operation.APPEND:
                present |= items
            else:
                present = {item: None for item in present if item not in items}
            config[change.name] = key.format(list(present))
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Config operation {change.config_operation} of {change.name} is not 0 (SET), 1 (DELETE), 2 (APPEND) or"
                " 3 (SUBTRACT).",
            )
    return config
