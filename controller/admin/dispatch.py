"""The requests that the controller serves, and their handlers.

A request is decided in slices. Each slice waits in the queue of events like any other event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import structlog

from anabranch.controller.admin.alter_configs import alter_configs
from anabranch.controller.admin.alter_partition import alter_partition
from anabranch.controller.admin.alter_partition_reassignments import alter_partition_reassignments
from anabranch.controller.admin.controlled_shutdown import controlled_shutdown
from anabranch.controller.admin.create_partitions import create_partitions
from anabranch.controller.admin.create_topics import create_topics
from anabranch.controller.admin.delete_topics import delete_topics
from anabranch.controller.admin.elect_leaders import elect_leaders
from anabranch.controller.admin.incremental_alter_configs import incremental_alter_configs
from anabranch.controller.admin.list_partition_reassignments import list_partition_reassignments
from anabranch.controller.admin.slices import Slices
from anabranch.controller.admin.update_features import update_features
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions
from anabranch.controller.events import AdminCall, TopicListChanged
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import ClusterImage
from anabranch.controller.outcome import Outcome, UnreadTopicError
from anabranch.controller.reads.requests import Facts
from anabranch.controller.store import ControllerMovedError, ImageStaleError
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.error_responses import error_response
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.api_versions import ApiVersion, ApiVersionsResponse
from anabranch.runtime.env import ZkError, ZkRequestTooLargeError
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.feature_keys import finalized_keys, supported_keys
from anabranch.zk_schemas.features import FeaturesStatus

logger = structlog.get_logger(__name__)
Handler: TypeAlias = Callable[..., Decisions[Outcome]]
"""Its arguments are the context, the request, its version, and the facts that ``reads/requests.py`` read for it."""


HANDLERS: dict[int, Handler] = {
    ApiKey.CONTROLLED_SHUTDOWN: controlled_shutdown,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.ALTER_PARTITION: alter_partition,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.UPDATE_FEATURES: update_features,
}


def on_call(context: Context, call: AdminCall, facts: Facts | Exception) -> Decisions[None]:
    """Decide one slice of a request. An error becomes the response to the slice, and the controller continues."""
    if call.is_given_up:
        return
    if call.slices is None:
        call.slices = Slices(call.api_key, call.body, context.image)
    some = call.slices.next
    try:
        if isinstance(facts, Exception):
            raise facts
        outcome = yield from HANDLERS[call.api_key](context, some, call.version, *facts)
    except (ControllerMovedError, ImageStaleError):
        raise
    except UnreadTopicError:
        context.events.put(TopicListChanged())  # the watch also puts this event, but perhaps later
        context.events.put(call)
        return
    except ZkError as error:
        give_up(context, f"request {ApiKey(call.api_key).name}", error)
        too_large = isinstance(error, ZkRequestTooLargeError)
        refusal = KafkaError(ErrorCode.INVALID_REQUEST if too_large else ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        outcome = Outcome(error_response(call.api_key, some, refusal.code, refusal.message))
    except Exception:
        logger.exception("request.failed", api=ApiKey(call.api_key).name, version=call.version)
        outcome = Outcome(error_response(call.api_key, some, ErrorCode.UNKNOWN_SERVER_ERROR))
    call.outcome = call.slices.take(outcome)
    if call.outcome is None:
        context.events.put(call)
    else:
        call.body = call.slices = None  # the response may have to wait, but does not need them
        call.decided.set()


def api_versions(
    supported: Mapping[str, VersionRange], image: ClusterImage | None, error_code: int = ErrorCode.NONE
) -> ApiVersionsResponse:
    """The APIs that this listener serves, and the features. A standby has no ``image``: it knows no finalized level."""
    served = sorted([ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CONFIGS, *HANDLERS])
    if error_code == ErrorCode.UNSUPPORTED_VERSION:
        served = [ApiKey.API_VERSIONS]
    keys = [
        ApiVersion(api_key=key, min_version=API[ApiKey(key)].min_version, max_version=API[ApiKey(key)].max_version)
        for key in served
    ]
    response = ApiVersionsResponse(error_code=error_code, api_keys=keys, supported_features=supported_keys(supported))
    if image is not None and image.features.status is FeaturesStatus.ENABLED:
        response.finalized_features = finalized_keys(image.features)
        response.finalized_features_epoch = image.features_epoch
    return response
