"""The metrics that controllers alone have."""

from __future__ import annotations

from anabranch.runtime.metric_rows import MetricTable, counter, gauge, histogram

CONTROLLER_METRICS = MetricTable(
    gauge("anabranch_active_controller", "1 while this controller is in office"),
    counter(
        "anabranch_elections",
        "Partitions that got a leader: their first, another one, or one that was not in sync (unclean)",
        ("kind",),
    ),
    gauge(
        "anabranch_frozen_topics",
        "Topics whose znodes contradict each other, or are older than a log: they are not resized; see the log",
    ),
    counter(
        "anabranch_given_up_steps",
        "Steps of the controller that could not be written to ZooKeeper, by the error: see its log",
        ("error",),
    ),
    gauge(
        "anabranch_marked_partitions",
        "Partitions marked for deletion that are not removed yet, as the controller in office sees them",
    ),
    gauge("anabranch_resize_age_seconds", "How long this controller has seen a topic being resized", ("topic",)),
    gauge("anabranch_resize_marked_partitions", "Partitions of a topic marked for deletion", ("topic",)),
    gauge(
        "anabranch_resize_records_left",
        "Records in a partition that is marked for deletion, as its leader reported",
        ("topic", "partition"),
    ),
    histogram(
        "anabranch_resize_seconds",
        "Seconds from a resize's first step until every leader had acknowledged it; draining may follow",
    ),
    gauge(
        "anabranch_resize_step", "1 for the stage of a topic's resize: moving, draining or queued", ("topic", "step")
    ),
    counter(
        "anabranch_resize_steps",
        "Steps of splits and merges that were written, and their ends (KIP-253)",
        ("topic", "step"),
    ),
    gauge(
        "anabranch_resize_unread_records",
        "Records that the group has not read in a partition that waits for it",
        ("topic", "partition", "group"),
    ),
    gauge(
        "anabranch_resize_wait_seconds",
        "How long a partition marked for deletion has waited; the labels name the group and the reason",
        ("topic", "partition", "group", "why"),
    ),
    counter(
        "anabranch_retention_warnings",
        "Partitions where retention was about to remove unread records that another partition waits for",
        ("topic", "group"),
    ),
    gauge(
        "anabranch_unfinished_resizes",
        "Topics with a resize that is queued, or that some leader has not acknowledged, as the controller in "
        "office sees them",
    ),
    gauge("kafka_brokers", "Registered brokers"),
    histogram(
        "kafka_controller_controllereventmanager_eventqueueprocessingtimems",
        "Milliseconds that the controller took for an event",
    ),
    gauge("kafka_controller_controllereventmanager_eventqueuesize", "Events that wait for the controller"),
    histogram(
        "kafka_controller_controllereventmanager_eventqueuetimems", "Milliseconds that events waited for the controller"
    ),
    histogram(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Milliseconds to elect the leaders of all partitions concerned after brokers came or went",
    ),
    counter(
        "kafka_controller_controllerstats_uncleanleaderelections",
        "Partitions that got a leader that was not in sync: records may be lost",
    ),
    gauge("kafka_controller_kafkacontroller_activebrokercount", "Registered brokers"),
    gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 for the controller in office"),
    gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions"),
    gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics"),
    gauge("kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions that had a leader and have none"),
    gauge(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "Partitions whose leader is not their first replica",
    ),
    gauge("kafka_controller_kafkacontroller_topicstodeletecount", "Topics that are being deleted"),
    gauge("kafka_topic_partitions", "Partitions of a topic", ("topic",)),
)
