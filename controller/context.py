"""What every decision of one term of office works with."""

from __future__ import annotations

import random
from dataclasses import dataclass

from controller.config import ControllerConfig
from controller.events import EventQueue
from controller.image import ClusterImage
from controller.metrics import ControllerMetrics
from controller.request_batch import RequestBatch
from controller.senders import Senders
from controller.store import GuardedStore
from runtime.env import Clock


@dataclass(frozen=True, slots=True)
class Context:
    """Image, guarded store, the batch of this drain, the senders, the event queue, the counters."""

    config: ControllerConfig
    rng: random.Random
    image: ClusterImage
    store: GuardedStore
    batch: RequestBatch
    senders: Senders
    events: EventQueue
    metrics: ControllerMetrics
    clock: Clock
