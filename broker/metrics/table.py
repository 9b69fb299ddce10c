"""The metrics that brokers alone have."""

from __future__ import annotations

from anabranch.runtime.metric_rows import MetricTable, counter, gauge, histogram

BROKER_METRICS = MetricTable(
    counter(
        "anabranch_appended_bytes",
        "Bytes of record batches appended to partitions that this broker leads, at the request of producers",
        ("topic",),
    ),
    gauge(
        "anabranch_closed_partitions", "Partitions this broker leads that are marked for deletion and take no records"
    ),
    counter("anabranch_committed_offsets", "Offsets in OffsetCommit requests to this coordinator"),
    counter("anabranch_connections_refused", "Connections refused because of max.connections.per.ip"),
    gauge(
        "anabranch_consumergroup_expired_unread",
        "Records that were removed before a group had committed them, since its last commit",
        ("consumergroup", "topic", "partition"),
    ),
    gauge(
        "anabranch_consumergroup_wait_seconds",
        "How long records have waited at a member for another member, the owner, to read a partition",
        ("consumergroup", "topic", "partition", "waiting", "owner"),
    ),
    gauge(
        "anabranch_group_members_bytes",
        "Memory of the groups with members that are coordinated here (group.members.max.bytes)",
    ),
    histogram(
        "anabranch_hand_over_seconds",
        "Waits of records, at members of groups coordinated here, until another partition was read",
    ),
    counter("anabranch_layout_refusals", "Batches refused with INVALID_PARTITION_METADATA (KIP-253)", ("topic",)),
    gauge("anabranch_led_partitions", "Partitions this broker leads"),
    counter("anabranch_log_cleaner_kept_bytes", "Bytes of logs after their compaction"),
    counter("anabranch_log_cleaner_read_bytes", "Bytes of logs before their compaction"),
    counter("anabranch_log_cleaner_runs", "Compactions of a log"),
    gauge("anabranch_log_dir_bytes", "The size of a log dir's file system", ("path",)),
    gauge("anabranch_log_dir_free_bytes", "The free space of a log dir's file system", ("path",)),
    gauge(
        "anabranch_logs_ahead_of_clock",
        "Logs with a record that is more than an hour ahead of this broker's clock: retention by time keeps it",
    ),
    gauge(
        "anabranch_logs_newer_than_zookeeper",
        "Logs of this broker that are newer than ZooKeeper's data; their partitions are not served",
    ),
    gauge(
        "anabranch_longest_withhold_seconds",
        "The longest present wait of a partition for a group, while it withholds records",
    ),
    counter("anabranch_messages_out", "Offsets of record batches in answers to consumers, by topic", ("topic",)),
    counter("anabranch_offset_commits", "OffsetCommit requests to this coordinator"),
    gauge("anabranch_partition_leader_epoch", "The leader epoch of a partition led here", ("topic", "partition")),
    counter("anabranch_refused_joins", "JoinGroup and SyncGroup requests refused because of group.members.max.bytes"),
    gauge(
        "anabranch_retained_bytes",
        "Bytes older than retention.ms that partitions led here keep, because the group has not read all of them",
        ("topic", "group"),
    ),
    gauge(
        "anabranch_retained_records",
        "Offsets older than retention.ms that partitions led here keep, because the group has not read all of them",
        ("topic", "group"),
    ),
    counter(
        "anabranch_retained_records_removed",
        "Records that retention removed although a group had yet to read them and another partition waits for them",
        ("topic", "group"),
    ),
    gauge(
        "anabranch_retained_since_seconds",
        "The time at which retention would have removed the oldest kept record, in seconds since 1970",
        ("topic", "group"),
    ),
    counter("anabranch_stock_produce_refusals", "Batches refused from producers that name no layout", ("topic",)),
    gauge(
        "anabranch_waiting_fetches_bytes",
        "Memory of the fetches without a session that wait (waiting.fetches.max.bytes)",
    ),
    counter("anabranch_waiting_fetches_ended", "Fetches answered early because of waiting.fetches.max.bytes"),
    counter(
        "anabranch_withheld_fetches",
        "Fetched partitions whose next records were withheld from a consumer, for the order of keys",
        ("topic",),
    ),
    gauge(
        "anabranch_withheld_partitions",
        "Partitions this broker leads that withhold records from stock consumers, for the order of keys",
    ),
    counter(
        "anabranch_withhold_let_go",
        "Waits for a group (empty: for a coordinator) that ended at their time limit: order may be lost",
        ("topic", "group"),
    ),
    gauge(
        "kafka_cluster_partition_atminisr",
        "1 when exactly min.insync.replicas replicas are in sync",
        ("topic", "partition"),
    ),
    gauge(
        "kafka_cluster_partition_insyncreplicascount",
        "The same as kafka_topic_partition_in_sync_replica, as Kafka calls it",
        ("topic", "partition"),
    ),
    gauge(
        "kafka_cluster_partition_replicascount",
        "The same as kafka_topic_partition_replicas, as Kafka calls it",
        ("topic", "partition"),
    ),
    gauge(
        "kafka_cluster_partition_underminisr",
        "1 when fewer replicas are in sync than min.insync.replicas",
        ("topic", "partition"),
    ),
    gauge(
        "kafka_consumergroup_current_offset",
        "The offset that a group has committed",
        ("consumergroup", "topic", "partition"),
    ),
    gauge(
        "kafka_consumergroup_current_offset_sum",
        "The offsets that a group has committed in a topic, added up",
        ("consumergroup", "topic"),
    ),
    gauge(
        "kafka_consumergroup_lag",
        "Readable records from a group's committed offset to the high watermark",
        ("consumergroup", "topic", "partition"),
    ),
    gauge(
        "kafka_consumergroup_lag_seconds",
        "The age of the first readable record that a group has not committed; 0 when there is none",
        ("consumergroup", "topic", "partition"),
    ),
    gauge("kafka_consumergroup_lag_sum", "Records that a group is behind in a topic", ("consumergroup", "topic")),
    gauge("kafka_consumergroup_members", "Members of a group", ("consumergroup",)),
    gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups coordinated here"),
    gauge(
        "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance",
        "Groups coordinated here in state CompletingRebalance",
    ),
    gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsdead", "Groups coordinated here in state Dead"),
    gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", "Groups coordinated here in state Empty"),
    gauge(
        "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance",
        "Groups coordinated here in state PreparingRebalance",
    ),
    gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", "Groups coordinated here in state Stable"),
    gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets of groups coordinated here"),
    gauge("kafka_log_log_logendoffset", "The offset after the last record of a replica's log", ("topic", "partition")),
    gauge("kafka_log_log_logstartoffset", "The first offset of a replica's log", ("topic", "partition")),
    gauge("kafka_log_log_numlogsegments", "Segments of a replica's log", ("topic", "partition")),
    gauge("kafka_log_log_size", "Bytes of a replica's log files", ("topic", "partition")),
    gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "The largest dirty share of a log at the last search for a log to compact, in percent",
    ),
    gauge(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Milliseconds since the cleaner last looked for a log to compact",
    ),
    gauge(
        "kafka_log_logmanager_logdirectoryoffline",
        "1 when the disk refused a log dir at the start of the broker",
        ("logDirectory",),
    ),
    counter(
        "kafka_network_requestmetrics_errors",
        "Error codes in responses, by API; one for each result",
        ("request", "error"),
    ),
    histogram("kafka_network_requestmetrics_localtimems", "Milliseconds of a request in its handler", ("request",)),
    histogram(
        "kafka_network_requestmetrics_remotetimems",
        "Milliseconds of a request after its handler until its answer was ready: waits for replicas, members, "
        "records, controllers",
        ("request",),
    ),
    histogram(
        "kafka_network_requestmetrics_requestqueuetimems",
        "Milliseconds of a request from its arrival to its handler, including the wait for earlier requests of "
        "its connection",
        ("request",),
    ),
    counter("kafka_network_requestmetrics_requests", "Requests, by API and version", ("request", "version")),
    histogram(
        "kafka_network_requestmetrics_responsesendtimems",
        "Milliseconds of a request after its answer was ready until it was sent, including the wait for earlier "
        "answers",
        ("request",),
    ),
    histogram("kafka_network_requestmetrics_totaltimems", "Milliseconds of a request in all", ("request",)),
    gauge("kafka_network_socketserver_memorypoolavailable", "Bytes that requests may still take; -1: no limit"),
    gauge("kafka_network_socketserver_memorypoolused", "Bytes that received requests and parked batches take"),
    gauge(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "The share of about the last minute in which the event loop had nothing to do",
    ),
    counter(
        "kafka_server_brokertopicmetrics_bytesin",
        "Bytes of record batches that producers appended, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_bytesout",
        "Bytes of record batches in answers to consumers, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_bytesrejected",
        "Bytes of record batches that were refused, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_failedfetchrequests",
        "Partitions in fetch requests of consumers that got an error, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_failedproducerequests",
        "Partitions in produce requests that got an error, by topic",
        ("topic",),
    ),
    counter("kafka_server_brokertopicmetrics_messagesin", "Records that producers appended, by topic", ("topic",)),
    counter(
        "kafka_server_brokertopicmetrics_replicationbytesin",
        "Bytes of record batches that this broker fetched from leaders, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_replicationbytesout",
        "Bytes of record batches in answers to followers, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_totalfetchrequests",
        "Partitions in answers to fetch requests of consumers, by topic",
        ("topic",),
    ),
    counter(
        "kafka_server_brokertopicmetrics_totalproducerequests", "Partitions in produce requests, by topic", ("topic",)
    ),
    gauge(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Requests that wait for a change of a partition or for their timeout",
        ("delayedOperation",),
    ),
    gauge(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "The share of about the last minute in which the event loop had nothing to do",
    ),
    gauge("kafka_server_kafkaserver_brokerstate", "3 while this broker runs, as in Kafka"),
    gauge(
        "kafka_server_replicafetchermanager_maxlag",
        "The most records that a replica here is behind its leader's high watermark",
    ),
    gauge(
        "kafka_server_replicamanager_atminisrpartitioncount",
        "Partitions led here with exactly min.insync.replicas replicas in sync",
    ),
    counter("kafka_server_replicamanager_failedisrupdates", "ISR changes that the controller refused"),
    counter("kafka_server_replicamanager_isrexpands", "Times an ISR gained a replica at the request of this broker"),
    counter("kafka_server_replicamanager_isrshrinks", "Times an ISR lost a replica at the request of this broker"),
    gauge("kafka_server_replicamanager_leadercount", "Partitions this broker leads"),
    gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Replicas on this broker that are offline because of a disk error",
    ),
    gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker"),
    gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused",
    ),
    gauge(
        "kafka_server_replicamanager_underreplicatedpartitions", "Partitions led here that have a replica not in sync"
    ),
    counter("kafka_server_socket_server_metrics_connection_close", "Connections closed again", ("listener",)),
    gauge("kafka_server_socket_server_metrics_connection_count", "Open connections", ("listener",)),
    counter("kafka_server_socket_server_metrics_connection_creation", "Connections accepted", ("listener",)),
    gauge("kafka_topic_partition_current_offset", "The high watermark of a partition led here", ("topic", "partition")),
    gauge("kafka_topic_partition_in_sync_replica", "Replicas in sync of a partition led here", ("topic", "partition")),
    gauge("kafka_topic_partition_leader", "The broker that leads the partition", ("topic", "partition")),
    gauge(
        "kafka_topic_partition_leader_is_preferred",
        "1 when the leader is the first replica of the partition",
        ("topic", "partition"),
    ),
    gauge("kafka_topic_partition_oldest_offset", "The first offset of a partition led here", ("topic", "partition")),
    gauge("kafka_topic_partition_replicas", "Replicas of a partition led here", ("topic", "partition")),
    gauge(
        "kafka_topic_partition_under_replicated_partition",
        "1 when a partition led here has replicas not in sync",
        ("topic", "partition"),
    ),
)
