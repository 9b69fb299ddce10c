"""Metrics of the ZooKeeper session: its state, and the number of its changes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from anabranch.runtime.env import SessionState, ZkStore
from anabranch.runtime.metric_table import PROCESS_METRICS

_CHANGES = {
    SessionState.CONNECTED: "kafka_server_sessionexpirelistener_zookeepersyncconnects",
    SessionState.SUSPENDED: "kafka_server_sessionexpirelistener_zookeeperdisconnects",
    SessionState.LOST: "kafka_server_sessionexpirelistener_zookeeperexpires",
}


class ZkMetrics:
    """A source of ``Metrics``. ``close`` ends its subscription to the session's state."""

    def __init__(self, zk: ZkStore) -> None:
        self._zk = zk
        self._changes = dict.fromkeys(SessionState, 0)
        self._changes[zk.state] += zk.state is SessionState.CONNECTED
        self.close = zk.on_state(self._note)

    def _note(self, state: SessionState) -> None:
        self._changes[state] += 1

    def __call__(self) -> Iterator[Metric | None]:
        state = PROCESS_METRICS.family("anabranch_zookeeper_session_state")
        for one in SessionState:
            state.add_metric((one.value,), float(one is self._zk.state))
        yield state
        for one, name in _CHANGES.items():
            yield PROCESS_METRICS.value(name, self._changes[one])
