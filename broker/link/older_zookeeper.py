"""Finds out that ZooKeeper's data are older than what this broker knows, as after the restore of a backup (ADR 60).

The broker serves no partition whose log is newer than the partition's znode. It deletes no such log. Late requests look
like older data, so the broker reads the znode before it says so.
"""

from __future__ import annotations

import structlog

from anabranch.broker.replication.standing import Standing, ahead
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import NoNodeError, ZkStore
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import decode_controller_epoch
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


class OlderZooKeeper:
    """What ZooKeeper has lost, as far as this process has found out."""

    def __init__(self, zk: ZkStore, broker_id: int) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self.logs: dict[TopicPartition, str] = {}
        """The refused partitions, each with a sentence."""
        self._controller = ""
        """How the controller epoch went back; empty if it did not."""

    def lines(self) -> list[str]:
        """One line for each fault, for operators."""
        found = [f"zookeeper is older than log {key}: {why}" for key, why in sorted(self.logs.items())]
        return [f"zookeeper is older than this broker: {self._controller}", *found] if self._controller else found

    async def check_log(self, key: TopicPartition, log: Standing) -> str:
        """Compare a log with its partition's state znode. Returns the reason to refuse the partition; empty for none.

        Raises ``ZkError``.
        """
        path = PartitionState.path(*key)
        await self._zk.sync(path)
        try:
            znode = await self._zk.get(path)
            state = PartitionState.decode(path, znode.data)
        except (NoNodeError, MalformedZnodeError):
            return ""
        version = 0 if state.layout is None else state.layout.layout_version
        how = ahead(log, Standing(znode.czxid, state.leader_epoch, version))
        if not how:
            return ""
        why = f"broker {self._broker_id} has a newer log, of {how}; ZooKeeper's data are older than the log"
        if self.logs.get(key) != why:
            self.logs[key] = why
            logger.error("replica.newer_than_zookeeper", partition=str(key), path=path, reason=why)
        return why

    def accepted(self, key: TopicPartition) -> None:
        """Note that the broker serves the partition, or that its log is deleted."""
        self.logs.pop(key, None)

    async def check_controller(self, refused: int, known: int) -> None:
        """Find out why a controller has the epoch ``refused`` although this broker knows the later epoch ``known``.

        Most often another controller is in office already. Raises ``ZkError``.
        """
        await self._zk.sync(paths.CONTROLLER_EPOCH)
        try:
            stored = decode_controller_epoch(paths.CONTROLLER_EPOCH, (await self._zk.get(paths.CONTROLLER_EPOCH)).data)
        except (NoNodeError, MalformedZnodeError):
            return
        if stored < known and not self._controller:
            self._controller = f"controllers had epoch {known}, and {paths.CONTROLLER_EPOCH} is {stored}"
            logger.error(
                "controller.epoch_went_back", path=paths.CONTROLLER_EPOCH, stored=stored, known=known, refused=refused
            )

    def controller_accepted(self) -> None:
        """Note that the broker obeys the controller."""
        self._controller = ""
