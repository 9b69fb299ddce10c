"""The metrics that both brokers and controllers have."""

from __future__ import annotations

from anabranch.runtime.metric_rows import MetricTable, counter, gauge, histogram

PROCESS_METRICS = MetricTable(
    gauge(
        "anabranch_background_failing",
        "Items of background work that fail now; `python -m anabranch.health` names them",
    ),
    counter(
        "anabranch_background_failures",
        "Failures of background work that the process survived; `python -m anabranch.health` names the items",
        ("task",),
    ),
    histogram(
        "anabranch_garbage_collection_seconds", "Durations of garbage collections, each of which stopped the process"
    ),
    histogram(
        "anabranch_loop_lag_seconds", "Durations of the event loop's rounds; sockets are polled between two rounds"
    ),
    gauge("anabranch_process_info", "The kind, the id and the release of this process", ("kind", "id", "version")),
    gauge("anabranch_zookeeper_session_state", "1 for the state of the ZooKeeper session", ("state",)),
    gauge("kafka_server_kafkaserver_linux_disk_read_bytes", "Bytes read from disks for this process"),
    gauge("kafka_server_kafkaserver_linux_disk_write_bytes", "Bytes written to disks for this process"),
    counter(
        "kafka_server_sessionexpirelistener_zookeeperdisconnects",
        "Times the connection to ZooKeeper was lost within a session",
    ),
    counter("kafka_server_sessionexpirelistener_zookeeperexpires", "Times a session with ZooKeeper expired"),
    counter("kafka_server_sessionexpirelistener_zookeepersyncconnects", "Times the connection to ZooKeeper was made"),
    histogram(
        "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
        "Milliseconds from a request to ZooKeeper until the loop has its response",
    ),
    counter("process_cpu_seconds", "Total user and system CPU time spent in seconds."),
    gauge("process_max_fds", "Maximum number of open file descriptors."),
    gauge("process_open_fds", "Number of open file descriptors."),
    gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
    gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds."),
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."),
)
