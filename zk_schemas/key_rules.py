"""The types, units and rules that the tables of config keys share."""

from __future__ import annotations

from anabranch.zk_schemas.config_def import Between, ConfigType, Matches, OneOf, UpdateMode

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
SHORT, LONG, DOUBLE, LIST = ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
CLUSTER = UpdateMode.CLUSTER_WIDE

MS_PER_MINUTE = 60_000
MS_PER_HOUR = 3_600_000
MS_PER_DAY = 24 * MS_PER_HOUR

CLEANUP_POLICIES = OneOf(("delete", "compact"))
COMPRESSION_TYPES = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
STOCK_PRODUCERS = OneOf(("verify", "reject", "accept"))
STOCK_ADMIN = OneOf(("reject", "accept"))
STOCK_CONSUMERS = OneOf(("accept", "withhold"))
TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))
ADDRESS = Matches(r".*:\d{1,5}", "host:port")
REPLICAS = Matches(r"\*|\d+:\d+", "* or partition:broker")
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
RATIO = Between(0, 1)
MIN_SEGMENT_BYTES = 14
POSITIVE = Between(1)
NATURAL = Between(0)
UNLIMITED = Between(-1)
