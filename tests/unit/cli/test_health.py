"""``python -m anabranch.health``: a server that answers is healthy. For any other server the reason is printed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from anabranch.cli.main import main as anabranch
from anabranch.health import UnhealthyError, check_broker, check_controller, main
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import Request, ServerConnection, encode_response
from anabranch.protocol.generated.api_versions import ApiVersionsResponse
from anabranch.protocol.generated.metadata import MetadataResponse, MetadataResponseBroker

HOST = "127.0.0.1"
SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "docs" / "cli.schema.json").read_text())
Answer = Callable[[Request], Any]


def answers(*broker_ids: int, error: ErrorCode = ErrorCode.NONE, failing: list[str] | None = None) -> Answer:
    def answer(request: Request) -> Any:
        if request.header.api_key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(error_code=error, background_failures=failing or [])
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=number, host=HOST) for number in broker_ids])

    return answer


@contextmanager
def listening(answer: Answer | None) -> Iterator[int]:
    """Run a server for one connection. It answers with the results of ``answer``, or closes if ``answer`` is None."""
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=_serve, args=[listener, answer])
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def _serve(listener: socket.socket, answer: Answer | None) -> None:
    frames = ServerConnection()
    connection, _ = listener.accept()
    with connection:
        while received := connection.recv_into(frames.buffer()):
            if answer is None:
                return
            frames.received(received)
            while (request := frames.next_request()) is not None:
                header = request.header
                response = encode_response(header.api_key, header.api_version, header.correlation_id, answer(request))
                connection.sendall(b"".join(bytes(part) for part in response))  # type: ignore[arg-type]


def test_a_broker_that_lists_itself_is_healthy() -> None:
    with listening(answers(1, 2)) as port:
        check_broker(HOST, port, 2)


@pytest.mark.parametrize(("strict", "status"), [([], 0), (["--strict"], 1)])
def test_failing_background_tasks_of_a_server_are_printed(
    capsys: pytest.CaptureFixture[str], strict: list[str], status: int
) -> None:
    with listening(answers(2, failing=["log-cleaner t-0: failed"])) as port:
        assert check_broker(HOST, port, 2) == ["log-cleaner t-0: failed"]
    with listening(answers(failing=["listener A: failed"])) as port:
        given = ["--set", f"controller.listener=PLAINTEXT://{HOST}:{port}", "--set", "zookeeper.connect=h:1"]
        assert main(["controller", *given, "--set", "controller.id=1000", *strict]) == status
    assert capsys.readouterr().out == "failing: listener A: failed\n"


def test_a_broker_that_the_cluster_does_not_know_is_not_healthy() -> None:
    with listening(answers(1, 2)) as port, pytest.raises(UnhealthyError, match=r"broker 3 is not registered.*\[1, 2\]"):
        check_broker(HOST, port, 3)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "the server closed the connection instead of answering API_VERSIONS"),
        (answers(error=ErrorCode.INVALID_REQUEST), "the response to API_VERSIONS has the error INVALID_REQUEST"),
    ],
)
def test_a_controller_whose_listener_does_not_answer_is_not_healthy(answer: Answer | None, expected: str) -> None:
    with listening(answer) as port, pytest.raises(UnhealthyError, match=expected):
        check_controller(HOST, port)


def test_a_peer_that_accepts_and_stays_silent_is_not_healthy() -> None:
    with socket.create_server((HOST, 0)) as silent, pytest.raises(UnhealthyError, match="timed out"):
        check_controller(HOST, silent.getsockname()[1], timeout_s=0.05)


def test_an_ipv6_address_is_named_in_brackets() -> None:
    with pytest.raises(UnhealthyError, match=r"^\[::1\]:1: "):
        check_controller("::1", 1)


def test_a_port_that_speaks_http_is_named() -> None:
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnhealthyError, match="the other side speaks HTTP, not Kafka's protocol"):
            check_controller(HOST, listener.getsockname()[1])
        thread.join()


def test_every_listener_of_the_configuration_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(answers(7)) as inside, socket.create_server((HOST, 0)) as closed:
        outside = closed.getsockname()[1]
        closed.close()
        monkeypatch.setenv("ANABRANCH_BROKER_ID", "7")
        monkeypatch.setenv("ANABRANCH_ZOOKEEPER_CONNECT", "unused:2181")
        monkeypatch.setenv("ANABRANCH_LISTENERS", f"INTERNAL://:{inside},EXTERNAL://0.0.0.0:{outside}")
        monkeypatch.setenv("ANABRANCH_ADVERTISED_LISTENERS", f"INTERNAL://here:{inside},EXTERNAL://there:{outside}")
        monkeypatch.setenv("ANABRANCH_LISTENER_SECURITY_PROTOCOL_MAP", "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT")
        assert main(["broker"]) == 1
    assert f"{HOST}:{outside}: " in capsys.readouterr().err


def test_an_invalid_configuration_has_an_exit_status_of_its_own() -> None:
    with listening(answers()) as port:
        settings = ["--set", "controller.id=1000", "--set", "zookeeper.connect=unused:2181"]
        assert main(["controller", *settings, "--set", f"controller.listener=PLAINTEXT://{HOST}:{port}"]) == 0
    assert main(["controller", *settings, "--set", "controller.listener=nonsense"]) == 2


@pytest.mark.parametrize(
    ("answer", "serves", "error", "failing"),
    [
        (answers(), True, None, []),
        (answers(failing=["listener A: failed"]), True, None, ["listener A: failed"]),
        (None, False, "the server closed the connection instead of answering API_VERSIONS", []),
    ],
)
def test_the_json_output_follows_its_schema(
    capsys: pytest.CaptureFixture[str], answer: Answer | None, serves: bool, error: str | None, failing: list[str]
) -> None:
    with listening(answer) as port:
        address = f"PLAINTEXT://{HOST}:{port}"
        given = {"controller.id": 1000, "zookeeper.connect": "unused:1", "controller.listener": address}
        settings = [text for key, value in given.items() for text in ("--set", f"{key}={value}")]
        with pytest.raises(SystemExit) as ended:
            anabranch(["health", "controller", *settings, "--json"])
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA["$defs"]["health"])
    assert ended.value.code == (0 if serves else 1)
    assert (found["role"], found["serves"], found["failing"]) == ("controller", serves, failing)
    assert found["error"] == (error and f"{HOST}:{port}: {error}")


def test_the_check_imports_no_event_loop_and_no_zookeeper() -> None:
    heavy = {"trio", "anyio", "kazoo", "asyncio", "cyclopts", "structlog"}
    code = (
        "import sys, anabranch.health, anabranch.broker.config, anabranch.controller.config;"
        f"print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}} & {heavy!r})))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
