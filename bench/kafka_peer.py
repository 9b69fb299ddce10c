"""Apache Kafka from Maven Central: its jars, its command-line tools, and a cluster of its brokers in KRaft mode."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.maven import CACHE, PeerUnavailable, resolved

POM = Path(__file__).with_name("kafka-peer.pom.xml")
JARS = CACHE / "kafka-peer" / "jars"
READY_DEADLINE_S = 60
STOP_GRACE_S = 20
HOST = "127.0.0.1"
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-storage": "kafka.tools.StorageTool",
}
_ARCHIVED = frozenset({"kafka-topics", "kafka-configs"})
"""Tools whose classes most other tools need, too."""
_SHORT_RUN = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
"""Options of a JVM that would compile longer than it runs."""
_SILENT = ["-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable"]
"""Silences HotSpot, which prints a line for each class that it cannot archive. Java before 13 archives none."""


def kafka_jars() -> Path:
    """The directory with Kafka's jars, resolved once. Raises ``PeerUnavailable`` when they are not available."""
    return resolved(JARS, "Kafka", "-f", str(POM), "dependency:copy-dependencies")


def java_command(
    main_class: str, arguments: Sequence[str], *, heap: str = "256m", log_config: str = "", short: bool = True
) -> list[str]:
    """A command line that runs one of Kafka's main classes. ``short`` is for runs of seconds."""
    options = [f"-Xmx{heap}", *(_SHORT_RUN if short else [])]
    if log_config:
        options += [f"-Xms{heap}", f"-Dlog4j.configuration=file:{log_config}"]
    return ["java", *options, "-cp", f"{kafka_jars()}/*", main_class, *arguments]


def run_tool(
    name: str, *arguments: str, stdin: str | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run one of ``TOOLS`` to its end. The result is returned whatever the exit status.

    The first run of an administrator's tool writes an archive of its loaded classes (JEP 350). All later tools map it,
    and start in half of the time. Java ignores an archive of another Java or of other jars.
    """
    java, *options = java_command(TOOLS[name], arguments)
    archive, partial = CACHE / "tools.jsa", CACHE / f"tools.jsa.{os.getpid()}-{uuid.uuid4().hex}"
    if archive.exists():
        classes = [*_SILENT, f"-XX:SharedArchiveFile={archive}"]
    else:
        may_write = name in _ARCHIVED and os.access(CACHE, os.W_OK)
        classes = [*_SILENT, f"-XX:ArchiveClassesAtExit={partial}"] if may_write else []
    try:
        done = subprocess.run(
            [java, *classes, *options], input=stdin, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode >= 0 and partial.exists():
            partial.replace(archive)  # no other tool sees a part of it
    finally:
        partial.unlink(missing_ok=True)
    return done


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class KafkaCluster:
    """Kafka brokers that are their own KRaft controllers. Use as a context manager.

    ``short`` is for a cluster that runs for seconds, and whose speed is not measured.
    """

    directory: Path
    brokers: int = 1
    heap: str = "1g"
    short: bool = False
    overrides: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    _commands: list[list[str]] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    @property
    def broker_pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def __enter__(self) -> KafkaCluster:
        self.ports = [free_port() for _ in range(self.brokers)]
        controllers = [free_port() for _ in range(self.brokers)]
        voters = ",".join(f"{index + 1}@{HOST}:{port}" for index, port in enumerate(controllers))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        log_config = self.directory / "log4j.properties"
        self.directory.mkdir(parents=True, exist_ok=True)
        log_config.write_text("log4j.rootLogger=WARN\n")
        try:
            for index in range(self.brokers):
                self._start(index, controllers[index], voters, cluster_id, str(log_config))
            self._wait_until_serving()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, index: int, controller_port: int, voters: str, cluster_id: str, log_config: str) -> None:
        home = self.directory / f"kafka-{index + 1}"
        replicas = str(min(3, self.brokers))
        properties = {
            "node.id": str(index + 1),
            "process.roles": "broker,controller",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{self.ports[index]},CONTROLLER://{HOST}:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(home / "data"),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.overrides,
        }
        home.mkdir(parents=True, exist_ok=True)
        path = home / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        formatted = run_tool("kafka-storage", "format", f"--cluster-id={cluster_id}", "-c", str(path))
        if formatted.returncode != 0:
            raise PeerUnavailable(f"kafka-storage format failed: {formatted.stderr.strip()[-300:]}")
        self._commands.append(
            java_command("kafka.Kafka", [str(path)], heap=self.heap, log_config=log_config, short=self.short)
        )
        self.processes.append(self._launch(index))

    def _launch(self, index: int) -> subprocess.Popen[bytes]:
        with open(self.directory / f"kafka-{index + 1}" / "server.log", "ab") as log:
            return subprocess.Popen(self._commands[index], stdout=log, stderr=subprocess.STDOUT)

    def kill(self, broker_id: int) -> None:
        """Kill a broker, which is also a controller, with kill -9."""
        self.processes[broker_id - 1].kill()
        self.processes[broker_id - 1].wait()

    def restart(self, broker_id: int) -> None:
        """Start a killed broker again, on its data; returns before it serves."""
        self.processes[broker_id - 1] = self._launch(broker_id - 1)

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + READY_DEADLINE_S
        for port, process in zip(self.ports, self.processes, strict=True):
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise PeerUnavailable(f"Kafka did not serve on port {port} within {READY_DEADLINE_S} s")
                try:
                    socket.create_connection((HOST, port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)  # polls: until the broker listens

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        self.processes.clear()
