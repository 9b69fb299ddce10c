"""The table from API keys to handlers. ApiVersions advertises exactly the keys in this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from anabranch.broker.handlers import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    consumer_group_position,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_withheld,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    partition_leader_epochs_for_partitions,
    produce,
    stop_replica,
    sync_group,
    topic_readers,
    update_features,
    update_metadata,
)
from anabranch.broker.request.context import Answer, CloseConnectionError, Handler, RequestContext
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.generated.api_versions import ApiVersion, ApiVersionsRequest

logger = structlog.get_logger(__name__)

HANDLERS: Mapping[ApiKey, Handler] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.LEADER_AND_ISR: leader_and_isr.handle,
    ApiKey.STOP_REPLICA: stop_replica.handle,
    ApiKey.UPDATE_METADATA: update_metadata.handle,
    ApiKey.OFFSET_COMMIT: offset_commit.handle,
    ApiKey.OFFSET_FETCH: offset_fetch.handle,
    ApiKey.FIND_COORDINATOR: find_coordinator.handle,
    ApiKey.JOIN_GROUP: join_group.handle,
    ApiKey.HEARTBEAT: heartbeat.handle,
    ApiKey.LEAVE_GROUP: leave_group.handle,
    ApiKey.SYNC_GROUP: sync_group.handle,
    ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
    ApiKey.LIST_GROUPS: list_groups.handle,
    ApiKey.API_VERSIONS: api_versions.handle,
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.DELETE_RECORDS: delete_records.handle,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    ApiKey.DESCRIBE_ACLS: describe_acls.handle,
    ApiKey.CREATE_ACLS: create_acls.handle,
    ApiKey.DELETE_ACLS: delete_acls.handle,
    ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
    ApiKey.ALTER_CONFIGS: alter_configs.handle,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs.handle,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.DELETE_GROUPS: delete_groups.handle,
    ApiKey.ELECT_LEADERS: elect_leaders.handle,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments.handle,
    ApiKey.OFFSET_DELETE: offset_delete.handle,
    ApiKey.UPDATE_FEATURES: update_features.handle,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers.handle,
    ApiKey.CONSUMER_GROUP_POSITION: consumer_group_position.handle,
    ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: partition_leader_epochs_for_partitions.handle,
    ApiKey.TOPIC_READERS: topic_readers.handle,
    ApiKey.DESCRIBE_WITHHELD: describe_withheld.handle,
}


class Dispatcher:
    """Applies each request with the handler of its API key."""

    def __init__(self, handlers: Mapping[ApiKey, Handler] = HANDLERS) -> None:
        self._handlers: dict[int, Handler] = {int(key): handler for key, handler in handlers.items()}
        self.advertised = [
            ApiVersion(api_key=int(key), min_version=API[key].min_version, max_version=API[key].max_version)
            for key in sorted(handlers)
        ]
        """The implemented versions of every API in the table, by API key."""

    def handle(self, ctx: RequestContext, body: Any) -> Answer:
        """Apply a request. Raises ``CloseConnectionError`` for an API that is not served and for a failed handler."""
        handler = self._handlers.get(ctx.api_key)
        if handler is None:
            raise CloseConnectionError(f"API {ctx.api_key} is not served")
        try:
            return handler(ctx, body)
        except CloseConnectionError:
            raise
        except Exception:
            logger.exception("request.failed", api=ApiKey(ctx.api_key).name, version=ctx.api_version)
            raise CloseConnectionError(
                f"{ApiKey(ctx.api_key).name} version {ctx.api_version} failed in a way the broker did not expect"
            ) from None

    def unsupported_api_versions(self, ctx: RequestContext, body: ApiVersionsRequest) -> Answer:
        """The version 0 answer to an ApiVersions request of an unknown version (KIP-511)."""
        return api_versions.unsupported(ctx, body)
