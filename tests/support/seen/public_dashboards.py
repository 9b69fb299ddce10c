"""The metrics and labels in the queries of public Kafka dashboards, by dashboard.

This is data, not a copy of their files. ``absent`` has metrics without a counterpart in Anabranch, such as those of the
JVM and Kubernetes.
"""

from __future__ import annotations

from typing import NamedTuple


class Dashboard(NamedTuple):
    """A dashboard. ``source`` is its repository, file and commit; ``asks`` has the labels by metric."""

    title: str
    id: str
    source: str
    asks: dict[str, set[str]]
    absent: set[str] = set()


_STRIMZI = "strimzi/strimzi-kafka-operator packaging/examples/metrics/grafana-dashboards"
_TOPIC, _GROUP = {"topic"}, {"consumergroup", "topic"}
_TOPIC_TRAFFIC = (
    "bytesin",
    "bytesout",
    "messagesin",
    "totalproducerequests",
    "failedproducerequests",
    "totalfetchrequests",
    "failedfetchrequests",
)

DASHBOARDS = [
    Dashboard(
        "Kafka Exporter Overview",
        "grafana.com 7589",
        "danielqsj/kafka_exporter kafka_exporter_overview.json 0f5fc55c",
        {
            "kafka_topic_partition_current_offset": _TOPIC,
            "kafka_consumergroup_lag": _GROUP,
            "kafka_topic_partitions": _TOPIC,
        },
    ),
    Dashboard(
        "Strimzi Kafka Exporter",
        "jwPKIsniz",
        f"{_STRIMZI}/strimzi-kafka-exporter.json 1c2d0fb5",
        {
            "kafka_topic_partitions": _TOPIC,
            "kafka_topic_partition_replicas": _TOPIC,
            "kafka_topic_partition_in_sync_replica": _TOPIC,
            "kafka_topic_partition_under_replicated_partition": _TOPIC,
            "kafka_cluster_partition_atminisr": _TOPIC,
            "kafka_cluster_partition_underminisr": _TOPIC,
            "kafka_topic_partition_leader_is_preferred": _TOPIC,
            "kafka_topic_partition_current_offset": {"partition", "topic"},
            "kafka_topic_partition_oldest_offset": {"partition", "topic"},
            "kafka_consumergroup_current_offset": {"consumergroup", "partition", "topic"},
            "kafka_consumergroup_lag": {"consumergroup", "partition", "topic"},
        },
        {"kafka_exporter_build_info"},
    ),
    Dashboard(
        "Strimzi Kafka",
        "86cc98e66c294b299b37102f0cc74ead",
        f"{_STRIMZI}/strimzi-kafka.json 1d637bf9",
        {
            "kafka_server_replicamanager_leadercount": set(),
            "kafka_controller_kafkacontroller_activecontrollercount": set(),
            "kafka_controller_controllerstats_uncleanleaderelections_total": set(),
            "kafka_server_replicamanager_partitioncount": set(),
            "kafka_server_replicamanager_underreplicatedpartitions": set(),
            "kafka_cluster_partition_atminisr": set(),
            "kafka_cluster_partition_underminisr": set(),
            "kafka_cluster_partition_replicascount": _TOPIC,
            "kafka_controller_kafkacontroller_offlinepartitionscount": set(),
            "process_cpu_seconds_total": set(),
            "process_open_fds": set(),
            **{f"kafka_server_brokertopicmetrics_{name}_total": _TOPIC for name in _TOPIC_TRAFFIC},
            "kafka_network_socketserver_networkprocessoravgidle_percent": set(),
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": set(),
            "kafka_server_kafkaserver_linux_disk_write_bytes": set(),
            "kafka_server_kafkaserver_linux_disk_read_bytes": set(),
            "kafka_server_socket_server_metrics_connection_count": {"listener"},
            "kafka_log_log_size": {"partition", "topic"},
        },
        {
            "container_memory_working_set_bytes",
            "kubelet_volume_stats_available_bytes",
            "jvm_memory_bytes_used",
            "jvm_gc_collection_seconds_sum",
            "jvm_gc_collection_seconds_count",
            "jvm_threads_current",
        },
    ),
]
