"""The client without ``async``, for scripts, threads and notebooks.

    from anabranch.sync import Producer

    with Producer(bootstrap_servers="localhost:9092") as p:
        handle = p.send("topic", key=b"k", value=b"v")
        print(handle.result())

The keyword arguments are Kafka's keys with ``_`` for ``.``; ``config`` of a client shows them all with their values.
The other names, such as ``TopicPartition``, ``NewTopic`` and ``KafkaError``, are those of ``anabranch``, whose own
``Admin``, ``Consumer`` and ``Producer`` are async: ``from anabranch import *`` would put them in place of these.
``docs/from-other-clients.md`` has the calls of other libraries.

Each class has every method of its async class, under the same name. A client starts when it is first used. Each object
runs an event loop of its own in a thread, which does not keep the program alive. Rebalance listeners run in the
program's thread, inside the call that waits, and may commit. Callbacks of records run in the client's thread and may
not wait. Each process needs its own objects: after ``fork`` a child cannot use the clients of its parent.
"""

from __future__ import annotations

from typing import Any

import anabranch
from anabranch.blocking.admin import Admin
from anabranch.blocking.consumer import Consumer
from anabranch.blocking.producer import Producer, RecordHandle
from anabranch.client.other_libraries import missing_in_module

__all__ = ["Admin", "Consumer", "Producer", "RecordHandle"]
__all__ += [name for name in anabranch.__all__ if name not in __all__]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise missing_in_module(__name__, name)
    return getattr(anabranch, name)
