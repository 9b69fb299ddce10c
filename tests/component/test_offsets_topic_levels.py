"""KIP-915: a broker writes ``__consumer_offsets`` by the finalized level, and reads the records of each level."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.message import read_version
from anabranch.protocol.records import iter_batches
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import CONSUMER_OFFSETS_TOPIC_SCHEMA, Features, FinalizedFeature
from sim.zk import FakeZk
from tests.support.broker import group_requests
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker

pytestmark = pytest.mark.trio
NONE, LOADING = ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def committed(broker: OneBroker) -> int:
    """The offset of the group ``g`` in ``t-0``, once its coordinator has loaded it; -1 for none."""
    request = group_requests.fetch_all_offsets("g")
    with trio.fail_after(DEADLINE_S):
        while (group := (await broker.request(request)).groups[0]).error_code == LOADING:
            await trio.sleep(0.005)  # polls: the coordinator loads in a task of its own
    return int(group.topics[0].partitions[0].committed_offset) if group.topics else -1


async def commit(broker: OneBroker, offset: int) -> int:
    response = await broker.request(group_requests.commit({("t", 0): offset}))
    return int(response.topics[0].partitions[0].error_code)


def stored_versions(directory: Path) -> list[int]:
    """The version of each commit in the log of ``__consumer_offsets-0``, oldest first."""
    (segment,) = (directory / f"{OFFSETS_TOPIC}-0").glob("*.log")
    records = [record for batch in iter_batches(segment.read_bytes()) for record in batch]
    return [read_version(record.value) for record in records if record.value is not None]


async def test_the_level_decides_the_version_of_written_records_and_every_version_is_read(tmp_path: Path) -> None:
    zk = FakeZk()
    session = zk.session()
    await session.create(paths.FEATURES, Features().encode())
    before = -1
    for level in (1, 2, 1):
        features = Features(features={CONSUMER_OFFSETS_TOPIC_SCHEMA: FinalizedFeature(1, level)})
        await session.set(paths.FEATURES, features.encode())
        async with one_broker(tmp_path, zk=zk) as broker:
            for topic in ("t", OFFSETS_TOPIC):
                await broker.create_topic(topic)
            assert await committed(broker) == before
            before += 10
            assert await commit(broker, before) == NONE
    assert stored_versions(tmp_path) == [3, 4, 3]
