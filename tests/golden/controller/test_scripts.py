"""Golden scripts: each step (``> ...``) is followed by the controller's znode writes and its requests to brokers.

The test runs the steps of a script and compares the whole text. Czxids and topic ids are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.env import CheckOp, CreateOp, SetOp, ZkOp
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster, FakeBroker, Log

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
SETTLED_S = 2.0
"""A virtual time longer than any pause of the controller."""


class Recorder:
    """Runs a script on its own cluster and records the outcomes."""

    def __init__(self, cluster: ControllerCluster) -> None:
        self.cluster = cluster
        self.lines: list[str] = []
        self._writes: list[str] = []
        self._read: dict[int, int] = {}

    async def run(self, step: str) -> None:
        self.lines.append(f"> {step}")
        verb, *words = step.split()
        await getattr(self, f"do_{verb}")(*words)
        await trio.sleep(SETTLED_S)  # virtual time: until all work has settled
        self.lines += [f"  {line}" for line in self._writes]
        self._writes.clear()
        for broker in self.cluster.brokers.values():
            new = broker.requests[self._read.get(broker.id, 0) :]
            self._read[broker.id] = len(broker.requests)
            self.lines += [f"  broker {broker.id} <- {line}" for request in new for line in sent(request)]

    async def do_controller(self, controller_id: str) -> None:
        await self.cluster.start_controller(int(controller_id))
        session = self.cluster.sessions[int(controller_id)]
        multi = session.multi

        async def recorded(ops: Sequence[ZkOp]) -> list[int]:
            versions = await multi(ops)
            if any(isinstance(op, CheckOp) and op.path == paths.CONTROLLER_EPOCH for op in ops):
                self._writes += ["multi", *(f"  {written(op)}" for op in ops if not isinstance(op, CheckOp))]
            return versions

        session.multi = recorded  # type: ignore[method-assign]

    async def do_kill(self, controller_id: str) -> None:
        self.cluster.kill_controller(int(controller_id))
        self.cluster.zk.end_session(self.cluster.sessions[int(controller_id)].session_id)

    async def do_up(self, broker_id: str) -> None:
        known = self.cluster.brokers.get(int(broker_id))
        if known is None:
            await self.cluster.start_broker(int(broker_id))
        else:
            await known.register()

    async def do_down(self, broker_id: str) -> None:
        self.cluster.brokers[int(broker_id)].leave()

    async def do_fail(self, broker_id: str, topic: str, partition: str) -> None:
        self._broker(broker_id).errors[topic, int(partition)] = ErrorCode.KAFKA_STORAGE_ERROR

    async def do_create(self, topic: str, *replicas: str) -> None:
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[int(broker)])
            for index, broker in enumerate(replicas)
        ]
        wanted = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=assignments)
        response = await self.cluster.request(CreateTopicsRequest(topics=[wanted], timeout_ms=1000))
        self.lines.append(f"  answer {ErrorCode(response.topics[0].error_code).name}")

    async def do_delete(self, topic: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=1000)
        response = await self.cluster.request(request)
        self.lines.append(f"  answer {ErrorCode(response.responses[0].error_code).name}")

    async def do_alter(self, topic: str, count: str) -> None:
        wanted = CreatePartitionsTopic(name=topic, count=int(count), assignments=None)
        response = await self.cluster.request(CreatePartitionsRequest(topics=[wanted], timeout_ms=1000))
        result = response.results[0]
        self.lines.append(f"  answer {ErrorCode(result.error_code).name} {result.error_message or ''}".rstrip())

    async def do_log(self, broker_id: str, topic: str, partition: str, *offsets: str) -> None:
        self._broker(broker_id).logs[topic, int(partition)] = Log(*map(int, offsets))

    async def do_write(self, path: str, data: str) -> None:
        if await self.cluster.store.exists(path) is None:
            await self.cluster.store.create(path, data.encode())
        else:
            await self.cluster.store.set(path, data.encode())

    def _broker(self, broker_id: str) -> FakeBroker:
        return self.cluster.brokers[int(broker_id)]


def written(op: ZkOp) -> str:
    if not isinstance(op, CreateOp | SetOp):
        return f"delete {op.path}"
    verb = "create" if isinstance(op, CreateOp) else "set"
    fields = json.loads(op.data) if op.data else {}
    shown = {name: fields[name] for name in fields if name not in ("version", "topic_id") and fields[name] != {}}
    if "lineage_times" in shown:
        shown["lineage_times"] = list(shown["lineage_times"])  # the leader epochs alone
    return " ".join([verb, op.path, *(f"{name}={json.dumps(value)}" for name, value in shown.items())])


def sent(request: Any) -> list[str]:
    head = type(request).__name__.removesuffix("Request")
    if isinstance(request, ListOffsetsRequest):
        return [
            f"{head} replica {request.replica_id} {topic.name}-{asked.partition_index}"
            f" leader epoch {asked.current_leader_epoch} timestamp {asked.timestamp}"
            for topic in request.topics
            for asked in topic.partitions
        ]
    lines = [f"{head} controller epoch {request.controller_epoch}"]
    if isinstance(request, LeaderAndIsrRequest):
        lines[0] += " full" if request.type == 2 else ""
    if isinstance(request, UpdateMetadataRequest):
        lines[0] += f" live {[broker.id for broker in request.live_brokers]}"
    for topic in request.topic_states:
        for state in topic.partition_states:
            partition = f"  {topic.topic_name}-{state.partition_index}"
            if isinstance(request, StopReplicaRequest):
                lines.append(f"{partition} leader epoch {state.leader_epoch} delete {state.delete_partition}")
                continue
            line = f"{partition} leader {state.leader} epoch {state.leader_epoch} isr {state.isr} zk {state.zk_version}"
            if isinstance(request, LeaderAndIsrRequest):
                counts = state.initial_partition_count, state.undeleted_partition_count, state.layout_version
                line += f" layout {counts}" + (" new" if state.is_new else "")
            lines.append(line)
    return lines


@pytest.mark.trio
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
async def test_each_step_causes_the_writes_and_requests_of_its_script(
    script: Path, nursery: trio.Nursery, autojump_clock: object
) -> None:
    expected = script.read_text().splitlines()
    recorder = Recorder(ControllerCluster(nursery))
    for line in expected:
        if line.startswith("> "):
            await recorder.run(line.removeprefix("> "))
    assert recorder.lines == [line for line in expected if not line.startswith("#")]


def test_the_scripts_are_found() -> None:
    assert len(SCRIPTS) >= 4
