"""The objects that every decision of one term of office uses."""

from __future__ import annotations

import random
from dataclasses import dataclass

from anabranch.controller.config import ControllerConfig
from anabranch.controller.events import EventQueue
from anabranch.controller.image import ClusterImage
from anabranch.controller.metrics import ControllerMetrics
from anabranch.controller.request_batch import RequestBatch
from anabranch.controller.senders import Senders
from anabranch.controller.store import GuardedStore
from anabranch.runtime.env import Clock


@dataclass(frozen=True, slots=True)
class Context:
    """Image, guarded store, the present batch, the senders, the event queue, the counters."""

    config: ControllerConfig
    rng: random.Random
    image: ClusterImage
    store: GuardedStore
    batch: RequestBatch
    senders: Senders
    events: EventQueue
    metrics: ControllerMetrics
    clock: Clock
