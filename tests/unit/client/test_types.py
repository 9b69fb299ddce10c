"""A type checker's result for users' programs: the examples of the documentation, and mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from anabranch.client import options
from anabranch.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from anabranch.sync_types import OPTIONS, STUB, formatted, stub
from anabranch.sync_types import options as keywords

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
SERIALIZERS = {"key_serializer", "value_serializer", "key_deserializer", "value_deserializer"}

RIGHT = """
from typing import assert_type

from anabranch import Admin, Consumer, ConsumerRecord, KafkaError, Producer, RecordHandle, RecordMetadata, Records
from anabranch import TopicPartition, sync

def number(data: bytes | None) -> int:
    return len(data or b"")

def encode(value: int) -> bytes:
    return b"%d" % value

def takes(producer: Producer, consumer: Consumer, admin: Admin) -> None: ...

def takes_bytes(producer: Producer[bytes, bytes], blocking: sync.Producer[bytes, bytes]) -> None: ...

def delivered(error: KafkaError | None, place: RecordMetadata) -> None: ...

declared: Producer[bytes, bytes] = Producer(bootstrap_servers="h:1")
explicit = Producer[bytes, bytes](bootstrap_servers="h:1")
blocks: sync.Producer[bytes, bytes] = sync.Producer(bootstrap_servers="h:1")

async def main() -> None:
    plain = Producer(bootstrap_servers="h:1", linger_ms=5, acks="all", compression_type="zstd")
    async with plain as producer:
        handle = await producer.send("t", key=b"k", value=bytearray(b"v"))
        assert_type(handle, RecordHandle)
        assert_type(await handle, RecordMetadata)
    started = await Producer(key_serializer=str.encode, value_serializer=encode).start()
    await started.send("t", 1, "k")
    assert_type(await started.send_many("t", [("k", 1), (None, 2)]), list[RecordMetadata])
    await started.stop()
    async with Consumer(bootstrap_servers=["h:1"], group_id="g") as raw:
        takes(producer, raw, Admin())
        takes_bytes(producer, sync.Producer())
        await producer.send("t", b"v", on_delivery=delivered)
        handle.add_done_callback(lambda done: print(done.result().offset))
        assert_type(await raw.getone(), ConsumerRecord[bytes | None, bytes | None])
    async with Consumer("t", "u", value_deserializer=number, group_id="g") as consumer:
        polled = await consumer.poll(1.0)
        assert_type(polled, ConsumerRecord[bytes | None, int] | None)
        if polled is not None:
            consumer.store_offsets(polled)
        async for record in consumer:
            assert_type(record.value, int)
            assert_type(record.key, bytes | None)
        found = await consumer.getmany(timeout_ms=1)
        assert_type(found, dict[TopicPartition, Records[bytes | None, int]])
        async for batch in consumer.batches():
            assert_type([r.value for r in batch], list[int])

def blocking() -> None:
    with sync.Producer(value_serializer=encode) as producer:
        assert_type(producer.send("t", 1).result(), RecordMetadata)
    with sync.Consumer(value_deserializer=number, group_id="g") as consumer:
        consumer.subscribe(["t"])
        for record in consumer:
            assert_type(record.value, int)
    started = sync.Consumer(value_deserializer=number).start()
    for batch in started.batches(max_records=10):
        assert_type([r.value for r in batch], list[int])
    started.stop()
    with sync.Admin(bootstrap_servers="h:1") as admin:
        assert_type(admin.list_topics()[0].name, str)
"""
WRONG = [
    ("Producer(linger=5)", 'Unexpected keyword argument "linger"'),
    ("Producer(linger_ms='soon')", "incompatible type"),
    ("Producer(acks=2)", "incompatible type"),
    ("Consumer(auto_offset_reset='newest')", "incompatible type"),
    ("sync.Producer(value_serializer=str.encode).send('t', 1)", 'Argument 2 to "send"'),
    ("sync.Consumer().subscribe(topic=['t'])", 'Unexpected keyword argument "topic"'),
    ("sync.Producer[str, str]().send('t', b'v')", 'Argument 2 to "send"'),
    ("Consumer(['t'])", 'Argument 1 to "Consumer"'),
    ("Admin(retires=1)", 'Unexpected keyword argument "retires"'),
]


def checked(tmp_path: Path, *programs: str) -> list[str]:
    """Return the errors that ``mypy --strict`` prints for these programs."""
    files = []
    for number, program in enumerate(programs):
        files.append(tmp_path / f"program_{number}.py")
        files[-1].write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    command += ["--config-file=", f"--cache-dir={tmp_path / 'cache'}", *map(str, files)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_programs_of_users_type_check_and_mistakes_do_not(tmp_path: Path) -> None:
    examples = [
        *BLOCK.findall((ROOT / "README.md").read_text()),
        *BLOCK.findall((ROOT / "docs/clients.md").read_text()),
    ]
    assert len(examples) >= 3
    mistakes = "from anabranch import Admin, Consumer, Producer, sync\n" + "\n".join(line for line, _ in WRONG)
    errors = checked(tmp_path, mistakes, RIGHT, *examples)
    assert [line for line in errors if not line.startswith("program_0.py")] == []
    by_line = {int(line.split(":")[1]): line for line in errors}
    for number, (line, message) in enumerate(WRONG, 2):
        assert message in by_line.get(number, "nothing"), line


@pytest.mark.parametrize(
    ("config", "typed"),
    [
        (ProducerConfig, options.ProducerOptions),
        (ConsumerConfig, options.ConsumerOptions),
        (AdminConfig, options.AdminOptions),
    ],
)
def test_every_key_has_a_type(config: Any, typed: Any) -> None:
    assert {field.name for field in fields(config)} - SERIALIZERS == get_type_hints(typed).keys()


def test_the_keyword_arguments_are_the_ones_generated_from_the_config_classes() -> None:
    text = OPTIONS.read_text()
    assert text == formatted(keywords(text), OPTIONS), "run `make gen`"


def test_the_stub_of_the_blocking_classes_is_up_to_date() -> None:
    assert STUB.read_text() == formatted(stub())
