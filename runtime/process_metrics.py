"""Metrics of the process from the operating system: CPU, memory, descriptors, disk traffic; on Linux."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from anabranch.runtime.metric_table import PROCESS_METRICS

_DISK = {
    "read_bytes": "kafka_server_kafkaserver_linux_disk_read_bytes",
    "write_bytes": "kafka_server_kafkaserver_linux_disk_write_bytes",
}


class ProcessMetrics:
    """A source of ``Metrics``. ``kind`` is broker or controller."""

    def __init__(self, kind: str, node_id: int, version: str) -> None:
        self._info = (kind, str(node_id), version)
        self._process = ProcessCollector(registry=CollectorRegistry(auto_describe=False))

    def __call__(self) -> Iterator[Metric | None]:
        info = PROCESS_METRICS.family("anabranch_process_info")
        info.add_metric(self._info, 1)
        yield info
        yield from self._process.collect()
        yield from _disk_traffic()


def _disk_traffic() -> Iterator[Metric]:
    try:
        with open("/proc/self/io") as file:
            values = dict(line.split(": ") for line in file.read().splitlines())
    except OSError:
        return
    for field, name in _DISK.items():
        yield PROCESS_METRICS.value(name, float(values[field]))
