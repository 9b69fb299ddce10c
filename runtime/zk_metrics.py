"""Metrics of the ZooKeeper session: its state, and the number of its changes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from anabranch.runtime.env import SessionState, ZkStore

_PREFIX = "kafka_server_sessionexpirelistener"
_CHANGES = {
    SessionState.CONNECTED: ("zookeepersyncconnects", "Times the connection to ZooKeeper was made"),
    SessionState.SUSPENDED: ("zookeeperdisconnects", "Times the connection to ZooKeeper was lost within a session"),
    SessionState.LOST: ("zookeeperexpires", "Times a session with ZooKeeper expired"),
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
        state = GaugeMetricFamily(
            "anabranch_zookeeper_session_state", "1 for the state of the ZooKeeper session", labels=("state",)
        )
        for one in SessionState:
            state.add_metric((one.value,), float(one is self._zk.state))
        yield state
        for one, (name, what) in _CHANGES.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", what, value=self._changes[one])
