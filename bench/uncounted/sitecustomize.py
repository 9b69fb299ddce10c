"""Turns off a broker's counting of traffic, requests and rounds. Python runs this if the folder is in PYTHONPATH."""

import trio

from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.request_metrics import RequestMetrics
from anabranch.runtime.loop_lag import LoopLag


def _nothing(*_arguments: object) -> None:
    pass


async def _never(_lag: LoopLag) -> None:
    await trio.sleep_forever()


for _owner, _name in (
    (RequestMetrics, "answered"),
    (BrokerMetrics, "note_response"),
    (BrokerMetrics, "note_appended"),
    (BrokerMetrics, "note_consumed"),
):
    setattr(_owner, _name, _nothing)
LoopLag.run = _never  # type: ignore[method-assign]
