"""A real ZooKeeper server for machines without one, run on Java from the jars in PySpark's wheel.

PySpark's files are located without importing it. The server listens on the loopback interface only.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import trio

from anabranch.runtime.child_processes import die_with_parent

MIN_JAVA = 17
START_DEADLINE_S = 30.0
STOP_GRACE_S = 10.0
HOST = "127.0.0.1"
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = (
    "zookeeper-3.",
    "zookeeper-jute-",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
    "netty-",
    "metrics-core-",
    "snappy-java-",
    "commons-io-",
    "commons-cli-",
    "audience-annotations-",
)
_PORT_ATTEMPTS = 5
_POLL_S = 0.05
_PROBE_TIMEOUT_S = 2.0
_LOG_CONFIG = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class ZookeeperUnavailableError(RuntimeError):
    """The server cannot run here or did not start; the message says what to do."""


def find_jars() -> list[Path]:
    """The jars ZooKeeper needs. Raises ``ZookeeperUnavailableError`` when PySpark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.submodule_search_locations[0]) / "jars" if spec and spec.submodule_search_locations else None
    if folder is None or not folder.is_dir():
        raise ZookeeperUnavailableError(
            "the embedded ZooKeeper needs the jars in PySpark's wheel: pip install 'anabranch[local]' "
            "(or run a ZooKeeper yourself and set zookeeper.connect)"
        )
    jars = sorted(jar for jar in folder.glob("*.jar") if jar.name.startswith(_JARS))
    if lacking := [prefix for prefix in _JARS[:6] if not any(jar.name.startswith(prefix) for jar in jars)]:
        raise ZookeeperUnavailableError(
            f"{folder} holds no {lacking[0]}*.jar: install pyspark 4 (pip install 'pyspark>=4')"
        )
    return jars


def find_java() -> str:
    """The ``java`` on the path. Raises ``ZookeeperUnavailableError`` when there is none or it is too old."""
    java = shutil.which("java")
    if java is None:
        raise ZookeeperUnavailableError(
            f"no java on the PATH: install Java {MIN_JAVA} or later (apt install openjdk-17-jre-headless)"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = parse_java_version(answer.stderr + answer.stdout)
    if version < MIN_JAVA:
        raise ZookeeperUnavailableError(
            f"{java} is Java {version or 'of an unknown version'}; Java {MIN_JAVA} or later is needed"
        )
    return java


def parse_java_version(text: str) -> int:
    """The major version in the output of ``java -version``; 0 when it has none."""
    _before, quote, after = text.partition('version "')
    numbers = after.partition('"')[0].split("-")[0].split(".")
    if not quote or not numbers[0].isdigit():
        return 0
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def free_port(host: str = HOST) -> int:
    """A port without a listener; another process may take it before it is used."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


class EmbeddedZookeeper:
    """One standalone server with its files in ``data_dir``.

    Blocking use: ``start()`` and ``stop()``, or ``with``. Under trio: ``async with``. A caller with a supervisor of its
    own calls ``prepare()``, runs ``command`` and awaits ``wait_until_serving()``. ``client_port`` 0 takes a free port.
    ``durable=False`` omits the fsync of each transaction, for tests.
    """

    def __init__(
        self,
        data_dir: str,
        *,
        client_port: int = 0,
        tick_time_ms: int = 250,
        heap_mib: int = 256,
        durable: bool = True,
    ) -> None:
        self._directory = Path(data_dir)
        self._fixed_port = client_port
        self.client_port = client_port
        self._tick_time_ms = tick_time_ms
        self._heap_mib = heap_mib
        self._durable = durable
        self._java = ""
        self._jars: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connect_string(self) -> str:
        return f"{HOST}:{self.client_port}"

    @property
    def log_path(self) -> Path:
        """The file of the started server's warnings."""
        return self._directory / "zookeeper.log"

    @property
    def pid(self) -> int:
        """Process id of the started server, 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    def prepare(self) -> None:
        """Find Java and the jars, choose the port and write the configuration.

        Raises ``ZookeeperUnavailableError``.
        """
        self._java, self._jars = find_java(), find_jars()
        self.client_port = self._fixed_port or free_port()
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.properties").write_text(_LOG_CONFIG)
        (self._directory / "zoo.cfg").write_text(
            "\n".join(
                [
                    f"dataDir={self._directory.resolve() / 'data'}",
                    f"clientPortAddress={HOST}",
                    f"clientPort={self.client_port}",
                    f"tickTime={self._tick_time_ms}",
                    "maxSessionTimeout=120000",
                    "maxClientCnxns=0",
                    "admin.enableServer=false",
                    "4lw.commands.whitelist=srvr",
                    "autopurge.snapRetainCount=3",
                    "autopurge.purgeInterval=1",
                    "",
                ]
            )
        )

    @property
    def command(self) -> list[str]:
        """The server's command line, after ``prepare()``."""
        return [
            self._java,
            f"-Xmx{self._heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}",
            f"-Dzookeeper.forceSync={'yes' if self._durable else 'no'}",
            "-Dzookeeper.preAllocSize=1024",
            "-cp",
            ":".join(str(jar) for jar in self._jars),
            _MAIN_CLASS,
            str(self._directory / "zoo.cfg"),
        ]

    def serves(self) -> bool:
        """Whether the server responds; blocks for at most a few seconds."""
        try:
            with socket.create_connection((HOST, self.client_port), timeout=_PROBE_TIMEOUT_S) as sock:
                sock.sendall(b"srvr")
                answer = b""
                while chunk := sock.recv(4096):
                    answer += chunk
        except OSError:
            return False
        return b"Mode:" in answer

    async def wait_until_serving(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until the server serves. Raises ``ZookeeperUnavailableError`` when the deadline passes."""
        with trio.move_on_after(deadline_s):
            while not await trio.to_thread.run_sync(self.serves):
                await trio.sleep(_POLL_S)
            return
        raise self._failure(f"did not serve within {deadline_s:g} s")

    def start(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the server and return when it serves. Raises ``ZookeeperUnavailableError``."""
        for attempt in range(_PORT_ATTEMPTS):
            self.prepare()
            self._spawn()
            if self._wait(deadline_s):
                return
            last = self._fixed_port or attempt == _PORT_ATTEMPTS - 1
            if last or "Address already in use" not in self._log_tail():
                raise self._failure("ended while starting")

    def stop(self) -> None:
        """End the server, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End the server at once, with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _spawn(self) -> None:
        tied = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
        with open(self.log_path, "wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent if tied else None,
            )

    def _wait(self, deadline_s: float) -> bool:
        """Wait until the server serves; False when its process ended. Raises when the deadline passes."""
        assert self._process is not None
        give_up = time.monotonic() + deadline_s
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                self._process = None
                return False
            if self.serves():
                return True
            time.sleep(_POLL_S)
        self.stop()
        raise self._failure(f"did not serve within {deadline_s:g} s")

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-8:])
        except OSError:
            return ""

    def _failure(self, what: str) -> ZookeeperUnavailableError:
        return ZookeeperUnavailableError(f"ZooKeeper on {self.connect_string} {what}\n{self._log_tail()}".rstrip())

    def __enter__(self) -> EmbeddedZookeeper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedZookeeper:
        await trio.to_thread.run_sync(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.stop)
