"""The columns of the tables: by the name of a column, the value of a row by which the rows are ordered. Pure."""

from __future__ import annotations

from anabranch.console.records import Shown
from anabranch.console.rows import BrokerRow, ConfigRow, GroupRow, PartitionRow, TopicRow
from anabranch.console.sorting import Columns
from anabranch.console.watched import WatchedPartition

OF_BROKERS: Columns[BrokerRow] = {
    "broker": lambda row: row.id,
    "address": lambda row: row.address,
    "state": lambda row: "live" if row.address else "down",
    "release": lambda row: row.release,
    "leads": lambda row: row.leads,
    "replicas": lambda row: row.hosts,
    "rate": lambda row: row.rate,
    "disk": lambda row: row.bytes,
    "free": lambda row: sum(free for _, free, _ in row.free) if row.free else None,
}
OF_TOPICS: Columns[TopicRow] = {
    "topic": lambda row: row.name,
    "partitions": lambda row: row.in_use + row.marked,
    "replicas": lambda row: row.replicas,
    "rate": lambda row: row.rate,
    "disk": lambda row: row.bytes,
    "lag": lambda row: row.lag and row.lag[0],
    "state": lambda row: row.leaderless * 1_000_000 + row.not_in_sync,
}
BY_RATE_OR_LAG = ("rate", "lag")
"""The columns of topics that need requests for every partition."""
OF_PARTITIONS: Columns[PartitionRow] = {
    "partition": lambda row: row.of.partition,
    "state": lambda row: row.of.state,
    "leader": lambda row: row.of.leader,
    "epoch": lambda row: row.of.leader_epoch,
    "isr": lambda row: len(row.of.isr),
    "from": lambda row: row.of.log_start_offset,
    "to": lambda row: row.of.high_watermark,
    "rate": lambda row: row.rate,
    "heat": lambda row: row.rate,
    "hottest": lambda row: row.hottest and row.hottest.share,
}
OF_GROUPS: Columns[GroupRow] = {
    "group": lambda row: row.name,
    "state": lambda row: row.state,
    "lag": lambda row: row.lag,
    "topics": lambda row: ", ".join(row.topics),
}
OF_READ_PARTITIONS: Columns[WatchedPartition] = {
    "topic": lambda row: row.topic,
    "partition": lambda row: row.partition,
    "committed": lambda row: row.committed_offset,
    "end": lambda row: row.high_watermark,
    "lag": lambda row: row.lag if row.at_most is None else row.at_most,
    "behind": lambda row: row.lag_s,
    "rate": lambda row: row.read_rate,
    "member": lambda row: row.client_id or (row.was and row.was.name),
}
OF_CONFIGS: Columns[ConfigRow] = {
    "key": lambda row: row.entry.name,
    "value": lambda row: "hidden" if row.entry.sensitive else row.entry.value,
    "source": lambda row: row.source,
    "otherwise": lambda row: "; ".join(row.otherwise),
}
OF_RECORDS: Columns[Shown] = {
    "partition": lambda row: row.partition,
    "offset": lambda row: row.offset,
    "time": lambda row: row.timestamp,
    "epoch": lambda row: row.leader_epoch,
    "key": lambda row: row.key,
    "value": lambda row: row.value,
}
