"""Load for tests that change a cluster: a producer, and a group that must get each key in order."""

from __future__ import annotations

import threading

from anabranch.sync import Consumer, Producer
from anabranch.testing.processes import wait_for

DEADLINE_S = 60.0
KEYS = 10


class KeyedLoad:
    """A producer and a group's consumer, which run until they are stopped."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._bootstrap, self._topic, self._group = bootstrap, topic, group
        self._stopping, self._all_sent = threading.Event(), threading.Event()
        self._producing, self._consuming = (
            threading.Thread(target=self._produce),
            threading.Thread(target=self._consume),
        )
        self.sent = 0
        self.read: dict[bytes, list[int]] = {}
        self.failures: list[Exception] = []

    def __enter__(self) -> KeyedLoad:
        self._producing.start()
        self._consuming.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._producing.join(DEADLINE_S)
        self._all_sent.set()
        self._consuming.join(DEADLINE_S)

    def _produce(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True) as producer:
                while not self._stopping.is_set():
                    handles = [
                        producer.send(self._topic, key=b"key-%d" % (number % KEYS), value=b"%d" % (number // KEYS))
                        for number in range(self.sent, self.sent + KEYS)
                    ]
                    for handle in handles:
                        handle.result()
                    self.sent += KEYS
        except Exception as error:
            self.failures.append(error)

    def _consume(self) -> None:
        try:
            with Consumer(
                bootstrap_servers=self._bootstrap,
                group_id=self._group,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=200,
                metadata_max_age_ms=2_000,
            ) as consumer:
                consumer.subscribe([self._topic])
                while not self._all_sent.is_set() or len(self.numbers()) < self.sent:
                    for records in consumer.getmany(timeout_ms=200).values():
                        for record in records:
                            self.read.setdefault(record.key or b"", []).append(int(record.value or b""))
        except Exception as error:
            self.failures.append(error)

    def numbers(self) -> set[tuple[bytes, int]]:
        return {(key, number) for key, numbers in list(self.read.items()) for number in list(numbers)}

    def wait_for_more(self, what: str) -> None:
        """Wait until more records are written and read, or until the load fails."""
        sent, seen = self.sent, len(self.numbers())
        wait_for(lambda: self.failures or (self.sent > sent and len(self.numbers()) > seen), DEADLINE_S, what)

    def check(self) -> None:
        """Check, after the block, that nothing failed, no record is lost, and no key is out of order."""
        assert self.failures == []
        assert len(self.numbers()) == self.sent
        for key, numbers in self.read.items():
            assert list(dict.fromkeys(numbers)) == sorted(set(numbers)), f"{key!r} is out of order"
