"""Record the directories of a cluster of commit a02dc22, with topics in every state that an unfinished resize leaves.

The code of that commit resizes by barriers and sealed offsets. The recording has the files that its processes wrote:
ZooKeeper's log, the log dirs of two brokers, and in ``manifest.json`` the records that were produced. To make it again:

    git worktree add /tmp/a02dc22 a02dc22
    python3 -m venv /tmp/a02dc22/.venv
    /tmp/a02dc22/.venv/bin/pip install -e '/tmp/a02dc22[local]'
    cd /tmp/a02dc22 && .venv/bin/python CHECKOUT/tests/earlier_release/record.py CHECKOUT/tests/earlier_release

The program imports only modules of that commit. A topic ``at-STEP`` is in the state that a controller leaves when it
dies after the step. A topic with ``-first`` is in the state after the first write of the step. The ``sitecustomize``
below causes this: at that point it stops the controller's work on the topic. At the end of the program every process is
killed.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from anabranch.client.admin.types import NewTopic
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.processes import ProcessCluster, wait_for

DEADLINE_S = 60.0
ANABRANCH = [sys.executable, "-m", "anabranch.cli.main"]
KEYS = 12
DRAIN = {"delete.records.when.drained": "true"}
STOPS: dict[str, tuple[str, int]] = {
    "at-grow-asked": ("asked", 4),
    "at-grow-record-new": ("grow-record-new", 4),
    "at-grow-losers-first": ("grow-losers-first", 4),
    "at-grow-losers": ("grow-losers", 4),
    "at-grow-counted": ("grow-counted", 4),
    "at-grow-gainers-first": ("grow-gainers-first", 4),
    "at-second-grow-losers-first": ("grow-losers-first", 8),
    "at-second-grow-gainers-first": ("grow-gainers-first", 8),
    "at-shrink-asked": ("asked", 2),
    "at-shrink-record-marked": ("shrink-record-marked", 2),
    "at-shrink-losers-first": ("shrink-losers-first", 2),
    "at-shrink-losers": ("shrink-losers", 2),
    "at-shrink-sealed-first": ("shrink-sealed-first", 2),
    "at-shrink-sealed": ("shrink-sealed", 2),
    "at-shrink-survivors-first": ("shrink-survivors-first", 2),
    "at-shrink-survivors": ("shrink-survivors", 2),
}
"""For each topic: the step after which its resize stops, and the partition count of that resize."""
COUNTS = {
    "never": [],
    "grown": [4],
    "draining": [4, 2],
    "removed": [4, 2],
    "grown-again": [4, 2, 4],
    **{name: [count] if count == 4 else [4, count] for name, (_, count) in STOPS.items()},
}
"""The counts that each topic of two partitions is resized to, one after the other."""
READ = {"removed", "grown-again"}
"""Topics whose groups read everything, so that marked partitions are removed."""

SITECUSTOMIZE = """
import json, os
STOPS = json.loads(os.environ["STOPS"])
try:
    from anabranch.controller.resize import plan, steps
except ImportError:
    steps = None

class Stopped(Exception):
    pass

if steps is not None:
    stopped, write, write_topic, advance = set(), steps._write, steps.write_topic, steps._advance

    def stop_of(topic):
        step, count = STOPS.get(topic.name, ("", 0))
        return step if plan.goal(topic) == count else ""

    async def stopping_write(context, topic, step, changes):
        stop = stop_of(topic)
        changes = list(changes)
        if changes and stop in (step, step + "-first"):
            await write(context, topic, step, changes[:1] if stop != step else changes)
            raise Stopped
        await write(context, topic, step, changes)

    async def stopping_write_topic(context, topic, znode, step):
        stop = stop_of(topic)
        await write_topic(context, topic, znode, step)
        if stop == step:
            raise Stopped

    async def stopping_advance(context, topic):
        if topic.name in stopped:
            return
        try:
            if stop_of(topic) == "asked":
                raise Stopped
            await advance(context, topic)
        except Stopped:
            stopped.add(topic.name)
            open(os.path.join(os.environ["STOPPED"], topic.name), "w").close()

    steps._write, steps.write_topic, steps._advance = stopping_write, stopping_write_topic, stopping_advance
"""


class Recording:
    """One cluster, and the records produced to it: ``{topic: {key: [value, ...]}}``."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.sent: dict[str, dict[str, list[str]]] = {}
        self._read: dict[str, set[tuple[str, str]]] = {}

    def produce(self, topic: str, rounds: int = 4) -> None:
        sent = self.sent.setdefault(topic, {})
        with Producer(bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True) as producer:
            for _ in range(rounds):
                for number in range(KEYS):
                    key = f"key-{number}"
                    value = str(len(sent.setdefault(key, [])))
                    producer.send(topic, key=key.encode(), value=value.encode()).result()
                    sent[key].append(value)

    def read(self, topic: str) -> None:
        """Read all records of the topic with its group, and commit."""
        everything = {(key, value) for key, values in self.sent[topic].items() for value in values}
        missing = everything - self._read.get(topic, set())
        with Consumer(
            bootstrap_servers=self._bootstrap,
            group_id=f"readers-of-{topic}",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            metadata_max_age_ms=500,
        ) as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + DEADLINE_S
            while missing:
                assert time.monotonic() < deadline, (
                    f"records of {topic} were not read within {DEADLINE_S} s: {sorted(missing)}"
                )
                for records in consumer.getmany(timeout_ms=200).values():
                    missing -= {(record.key.decode(), record.value.decode()) for record in records}
            consumer.commit()
        self._read[topic] = everything


def main(into: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="anabranch-record-") as scratch:
        hooks = Path(scratch) / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(SITECUSTOMIZE)
        os.environ["STOPS"], os.environ["STOPPED"] = json.dumps(STOPS), scratch
        os.environ["PYTHONPATH"] = str(hooks)
        directory = Path(scratch) / "cluster"
        overrides = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "50"}
        cluster = ProcessCluster(brokers=2, directory=directory, overrides=overrides)
        with cluster:
            sent = record(cluster, Path(scratch))
            (into / "a02dc22.znodes.json").write_text(json.dumps(znodes(cluster), indent=1) + "\n")
            kill_all(cluster)
        pack(directory / "data", into, {"sent": sent})


def record(cluster: ProcessCluster, stopped: Path) -> dict[str, dict[str, list[str]]]:
    recording = Recording(cluster.bootstrap)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for topic, counts in COUNTS.items():
            print(topic, flush=True)
            admin.create_topics([NewTopic(topic, 2, 1, dict(DRAIN))])
            recording.produce(topic)
            recording.read(topic)
            for count in counts:
                alter = ["topics", "alter", topic, "--partitions", str(count), "-b", cluster.bootstrap]
                if STOPS.get(topic, ("", 0))[1] == count:
                    asking = subprocess.Popen([*ANABRANCH, *alter])  # not answered
                    wait_for((stopped / topic).exists, DEADLINE_S, f"{topic} is stopped")
                    asking.kill()
                    asking.wait()
                    continue
                command(*alter, "--wait")
                recording.produce(topic)
                if topic in READ:
                    recording.read(topic)
                    wait_for(lambda: partitions(admin, topic) == count, DEADLINE_S, "removed")  # noqa: B023
    return recording.sent


def partitions(admin: Admin, topic: str) -> int:
    return len(admin.describe_topics([topic])[topic].partitions)


def command(*arguments: str) -> str:
    done = subprocess.run([*ANABRANCH, *arguments], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def znodes(cluster: ProcessCluster) -> dict[str, Any]:
    """``{path: content}`` of the topics except internal ones, and of the registrations."""
    zookeeper = KazooClient(hosts=cluster.state["zookeeper"])
    zookeeper.start()
    found = {}

    def read(path: str) -> None:
        content = zookeeper.get(path)[0]
        if content:
            found[path] = json.loads(content)
        for name in sorted(zookeeper.get_children(path)):
            if not name.startswith("__"):
                read(f"{path}/{name}")

    read("/brokers/topics")
    read("/brokers/ids")
    zookeeper.stop()
    return found


def kill_all(cluster: ProcessCluster) -> None:
    """Kill all processes, the supervisor first: it would start the others again."""
    pids = cluster.state["pids"]
    process = cluster._process
    assert process is not None
    process.kill()
    process.wait()
    for pid in (pids["zookeeper"], *pids["controller"], *pids["brokers"].values()):
        os.kill(int(pid), signal.SIGKILL)


def pack(data: Path, into: Path, manifest: dict[str, Any]) -> None:
    """Write one archive of the files of ZooKeeper and the brokers, without the output and properties of processes."""
    with tarfile.open(into / "a02dc22.tar.xz", "w:xz") as archive:
        for path in sorted(data.rglob("*")):
            name = path.relative_to(data)
            if name.parts[0] == "logs" or (path.suffix in (".cfg", ".properties") and path.name != "meta.properties"):
                continue
            if path.is_dir():
                archive.add(path, str(name), recursive=False)
            else:
                add(archive, str(name), path.read_bytes())
        add(archive, "manifest.json", json.dumps(manifest, indent=1).encode())


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
