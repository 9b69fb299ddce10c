"""The partitions of the offsets topic that this broker leads, and how they are loaded and unloaded.

Every load is a separate object. When a load ends, its result is used only if the partition has no newer load. So a late
load of an older leader epoch changes nothing. To unload a partition that is still loading, its load is forgotten.

A new leader holds every committed record, but does not know yet which of the last ones are committed: its high
watermark lags behind its predecessor's. The new leader reads the log to the end and serves once the high watermark has
reached that end (Kafka serves at once). Before that, any answer could be wrong. An offset above the high watermark may
be lost with this leader. An offset below the high watermark may be older than an acknowledged commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
import trio

from anabranch.broker.coordinator.broker_services import OffsetsLog
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.loader import adopt_groups, read_state, watch_deadlines
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.coordinator.timer import DeadlineTimer
from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.errors import ErrorCode
from anabranch.runtime.background import Background
from anabranch.runtime.env import Clock
from anabranch.zk_schemas.features import CONSUMER_OFFSETS_TOPIC_SCHEMA, highest_level

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 30.0
_TASK = "group-loading"

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Load:
    """A load in progress. ``leader_epoch`` advances while this broker continues to lead."""

    partition: int
    leader_epoch: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Leadership:
    """The state of each partition by number: loading, loaded, or led by another broker.

    ``leader_epoch`` orders the controller's requests, even if they arrive late. If it is None, the replica was deleted
    and is unloaded in any epoch (KAFKA-16118, KAFKA-19274). The epoch is then forgotten, because the epochs of a
    partition that is created again begin at 0. ``on_loaded`` is called for each partition that begins to serve.
    """

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        log: OffsetsLog,
        timer: DeadlineTimer,
        on_loaded: Callable[[LoadedPartition], None],
        background: Background | None = None,
        level: Callable[[str], int] = highest_level,
    ) -> None:
        self._level = level
        self._background = background or Background(clock)
        self.loaded: dict[int, LoadedPartition] = {}
        self.refused_joins = 0
        """The number of joins that were refused because members take too much memory."""
        self.on_waited: Callable[[float], None] = lambda _seconds: None
        """See ``Shard``."""
        self.is_closed = False
        self._config = config
        self._clock = clock
        self._log = log
        self._timer = timer
        self._on_loaded = on_loaded
        self._loads: dict[int, _Load] = {}
        self._epochs: dict[int, int] = {}
        self._to_start: list[_Load] = []
        self._wake = trio.Event()
        self._work = trio.Lock()
        """Only one load at a time reads or builds: fifty loads with a slice each would block the event loop 0.1 s."""

    @property
    def is_loading(self) -> bool:
        return bool(self._loads)

    def find(self, partition: int) -> LoadedPartition | ErrorCode:
        """The loaded partition, or the error for its groups."""
        if self.is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if partition in self._loads:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.loaded.get(partition, ErrorCode.NOT_COORDINATOR)

    def on_leader(self, partition: int, leader_epoch: int) -> None:
        """Load the partition unless the epoch is old. A leader of the previous epoch keeps its state or load."""
        known_epoch = self._epochs.get(partition)
        if self.is_closed or (known_epoch is not None and leader_epoch <= known_epoch):
            return
        self._epochs[partition] = leader_epoch
        ours = self.loaded.get(partition) or self._loads.get(partition)
        if ours is not None and leader_epoch == ours.leader_epoch + 1:
            ours.leader_epoch = leader_epoch
            return
        self._drop(partition, ErrorCode.NOT_COORDINATOR)
        loading = self._loads[partition] = _Load(partition, leader_epoch)
        self._to_start.append(loading)
        self._wake.set()

    def on_not_leader(self, partition: int, leader_epoch: int | None) -> None:
        """Unload the partition, unless the epoch is old."""
        if leader_epoch is None:
            self._epochs.pop(partition, None)
        elif leader_epoch < self._epochs.get(partition, leader_epoch):
            return
        else:
            self._epochs[partition] = leader_epoch
        self._drop(partition, ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Unload every partition."""
        self.is_closed = True
        for partition in [*self.loaded, *self._loads]:
            self._drop(partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _drop(self, partition: int, error: ErrorCode) -> None:
        loading = self._loads.pop(partition, None)
        if loading is not None:
            loading.scope.cancel()
        loaded = self.loaded.pop(partition, None)
        if loaded is not None:
            loaded.close(error)

    # ------------------------------------------------------------ loading

    async def run(self) -> None:
        """Start requested loads until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                starting, self._to_start = self._to_start, []
                for loading in starting:
                    nursery.start_soon(self._load, loading)
                if not self._to_start:
                    await self._wake.wait()

    async def _load(self, loading: _Load) -> None:
        """Read the partition; retry until it is read or the leadership ends: no other broker can serve its groups."""
        pause_s = FIRST_RETRY_S
        with loading.scope:
            while True:
                try:
                    await self._load_once(loading)
                    self._background.succeeded(_TASK, loading.partition)
                    return
                except Exception as error:
                    if self._loads.get(loading.partition) is not loading:
                        return
                    self._background.failed(_TASK, loading.partition, error, pause_s)
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, LAST_RETRY_S)

    def _note_refused(self) -> None:
        self.refused_joins += 1

    async def _load_once(self, loading: _Load) -> None:
        partition = loading.partition
        shard = Shard(self._config, leader_epoch=loading.leader_epoch, on_waited=self.on_waited)
        shard.on_refused = self._note_refused
        shard.memory_elsewhere = lambda: sum(
            other.shard.memory.taken_bytes for other in self.loaded.values() if other.shard is not shard
        )
        async with self._work:
            shard.durable = await read_state(self._log, partition, loading.leader_epoch, TimeSlice(self._clock))
        await self._log.wait_until_committed(partition, loading.leader_epoch)
        async with self._work:
            work = TimeSlice(self._clock)
            loaded = LoadedPartition(partition, loading.leader_epoch, shard, self._log, self._timer, self._clock)
            loaded.schema_level = lambda: self._level(CONSUMER_OFFSETS_TOPIC_SCHEMA)
            await adopt_groups(loaded, work)
            if self._loads.get(partition) is not loading:
                return
            loaded.leader_epoch = loading.leader_epoch
            del self._loads[partition]
            self.loaded[partition] = loaded
            self._on_loaded(loaded)
            await watch_deadlines(loaded, work)
