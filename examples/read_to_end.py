"""A batch job that reads a topic up to its present end, and ends: ``python examples/read_to_end.py TOPIC``.

It belongs to no group and commits nothing: each run reads everything. It prints the newest value of each key. Keys
keep their order, also in a topic that was resized, because the job reads all of its partitions.
"""

import argparse
import os

import anyio

from anabranch import Consumer, TopicPartition

SERVERS = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")


async def main(topic: str) -> None:
    newest: dict[bytes | None, bytes | None] = {}
    read = 0
    async with Consumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, p) for p in await consumer.partitions_for_topic(topic)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        left = set(partitions)
        while left:
            for tp, records in (await consumer.getmany(timeout_ms=1_000)).items():
                for record in records:
                    if record.offset < ends[tp]:  # newer records are for the next run
                        newest[record.key] = record.value
                        read += 1
            # The position passes offsets that have no record, as compaction leaves them.
            left = {tp for tp in left if await consumer.position(tp) < ends[tp]}
    for key, value in sorted(newest.items(), key=lambda item: item[0] or b""):
        print((key or b"").decode(), (value or b"").decode())
    print(f"{read} records, {len(newest)} keys")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("topic")
anyio.run(main, parser.parse_args().topic)
