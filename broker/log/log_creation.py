"""Creates a new, empty log in a new directory."""

from __future__ import annotations

from anabranch.broker.log.blank_directories import blank_directory
from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.identity_file import IdentityFile
from anabranch.broker.log.layout_history import LayoutHistory
from anabranch.broker.log.leader_epoch_cache import LeaderEpochCache
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_state import LogState
from anabranch.broker.log.open_segments import OpenSegments
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.paths import LEADER_EPOCH_CHECKPOINT, PARTITION_COUNT_CHECKPOINT, join
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.segment import LogSegment
from anabranch.broker.log.snapshot_files import SnapshotFiles
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env


def create_log(
    env: Env,
    directory: str,
    partition: TopicPartition,
    metadata: LogIdentity,
    config: LogConfig,
    producers: ProducerState,
    *,
    start_offset: int = 0,
    open_segments: OpenSegments | None = None,
) -> PartitionLog:
    """Create the log, whose first record gets ``start_offset``.

    Raises ``OSError``. The directory is then removed, if the disk allows that.
    """
    storage = env.storage
    assert storage is not None
    with blank_directory(storage, directory):
        identity = IdentityFile.create(storage, directory, metadata)
        segment = LogSegment(storage, directory, start_offset, config, env.clock.now_ms(), create=True)
    segment.is_flushed = segment.is_sealed = True  # it has no records: the first append opens the file again
    segment.release()
    epochs = LeaderEpochCache(storage, join(directory, LEADER_EPOCH_CHECKPOINT))
    layouts = LayoutHistory(storage, join(directory, PARTITION_COUNT_CHECKPOINT))
    offsets = (start_offset,) * 4
    state = LogState(identity, [segment], epochs, layouts, producers, SnapshotFiles(storage, directory), *offsets)
    return PartitionLog(env, directory, partition, config, state, open_segments)
