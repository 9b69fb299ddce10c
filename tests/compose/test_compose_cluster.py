"""The cluster of ``docker-compose.yml``, used from the host as in the README, killed, stopped and restarted."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from anabranch.testing.processes import wait_for
from tests.compose.deployment import BROKERS, CONTROLLERS, DEADLINE_S, ROOT, SERVICES, Deployment, docker
from tests.support.broker.failures import numbered, read, write
from tests.support.broker.load import Load, in_sync
from tests.support.controller.topics import create_topic
from tests.support.seen.prometheus_tools import scraping

PARTITIONS = 6
REPLICAS = 3
RECORDS_BETWEEN = 1_000
DATA = "/var/lib/anabranch/data"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

pytestmark = [pytest.mark.integration, pytest.mark.interop]


def test_every_service_is_healthy_and_servers_do_not_run_as_root(deployment: Deployment) -> None:
    assert {service: deployment.health(service) for service in SERVICES} == dict.fromkeys(SERVICES, "healthy")
    for service in (*BROKERS, *CONTROLLERS):
        assert deployment.execute(service, "id", "-u").stdout.strip() == "10001"


def test_every_server_serves_its_metrics_and_health_to_the_host(deployment: Deployment) -> None:
    for service, port in deployment.metrics_ports.items():
        kind = service.partition("-")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=DEADLINE_S) as answer:
            assert json.loads(answer.read())["process"] == kind
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
            assert 'anabranch_process_info{id="' in (page := answer.read().decode()) and f'kind="{kind}"' in page


def test_a_prometheus_scrapes_the_containers_and_a_killed_one_fires_an_alert(
    deployment: Deployment, tmp_path: Path
) -> None:
    targets = [f"127.0.0.1:{port}" for port in deployment.metrics_ports.values()]
    active = "sum(kafka_controller_kafkacontroller_activecontrollercount) == 1"
    with scraping(tmp_path, targets) as prometheus:
        wait_for(lambda: len(prometheus.query("up == 1")) == len(targets), DEADLINE_S, "all are scraped")
        wait_for(lambda: prometheus.query(active), DEADLINE_S, "one controller is active")
        deployment.kill(BROKERS[2])
        prometheus.until_firing("AnabranchProcessDown")
        deployment.start(BROKERS[2])
        prometheus.until_quiet("AnabranchProcessDown")
        deployment.wait_until_healthy(BROKERS[2])


def test_the_console_shows_the_cluster_to_the_host(deployment: Deployment) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{deployment.console_port}/", timeout=DEADLINE_S) as answer:
        page = answer.read().decode()
    assert all(f"{broker}:19092" in page for broker in BROKERS)


def test_the_readmes_example_works_from_the_host(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(
        r"```python\n(import anyio\nfrom anabranch import Consumer, Producer\n.*?)```",
        (ROOT / "README.md").read_text(),
        re.DOTALL,
    )
    assert example is not None
    code = example[1].replace("127.0.0.1:9092", deployment.bootstrap)
    assert code != example[1]
    create_topic(deployment.bootstrap, "events", PARTITIONS, replication_factor=REPLICAS)

    def runs() -> bool:
        exec(code, {})
        return "b'user-7' b'clicked'" in capsys.readouterr().out

    wait_for(runs, DEADLINE_S, "the example prints the record it wrote")


def test_a_stock_client_writes_and_reads_from_the_host(deployment: Deployment) -> None:
    values = numbered(0, 500)
    create_topic(deployment.bootstrap, "stock", 1, replication_factor=REPLICAS)
    assert write(deployment.bootstrap, "stock", values) == []
    assert read(deployment.bootstrap, "stock", len(values)) == values


def test_clients_in_the_container_network_use_the_inside_listeners(deployment: Deployment) -> None:
    servers = ["--bootstrap-server", "broker-1:19092"]
    made = deployment.execute("broker-3", "anabranch", "topics", "create", "inside", "--partitions", "3", *servers)
    assert made.returncode == 0, made.stderr
    assert "replication factor 3" in made.stdout
    put = deployment.execute("broker-3", "sh", "-c", f"seq 10 | anabranch produce inside {' '.join(servers)}")
    assert put.returncode == 0, put.stderr
    arguments = ["--from-beginning", "--max-messages", "10", *servers]
    seen = deployment.execute("controller-1", "anabranch", "consume", "inside", *arguments)
    assert sorted(map(int, seen.stdout.split())) == list(range(1, 11)), seen.stderr


def test_nothing_acknowledged_is_lost_when_containers_are_killed_under_load(deployment: Deployment) -> None:
    topic = "killed"
    create_topic(deployment.bootstrap, topic, PARTITIONS, replication_factor=REPLICAS)
    with Load(deployment.bootstrap, topic) as load:
        for victim in (BROKERS[0], deployment.active_controller()):
            load.wait_for_more(RECORDS_BETWEEN)
            deployment.kill(victim)
            load.wait_for_more(RECORDS_BETWEEN)
            deployment.start(victim)
            wait_for(lambda: in_sync(deployment.bootstrap, topic, REPLICAS), DEADLINE_S, "every replica is in sync")
        deployment.wait_until_healthy(*SERVICES)
        load.wait_for_more(RECORDS_BETWEEN)
    load.check(deployment.bootstrap, PARTITIONS)


@pytest.mark.parametrize("service", ["broker-2", "controller-1"])
def test_sigterm_ends_a_server_cleanly(deployment: Deployment, service: str) -> None:
    deployment.stop(service)
    assert deployment.inspect(service, ".State.ExitCode") == "0"
    if service in BROKERS:
        assert CLEAN_SHUTDOWN in deployment.files(service, DATA)
        assert "broker.stopped" in deployment.logs(service).splitlines()[-1]
    deployment.start(service)
    deployment.wait_until_healthy(service)
    if service in BROKERS:
        loaded = [line for line in deployment.logs(service).splitlines() if "log_dir.loaded" in line]
        assert "recovered=False" in loaded[-1]


def test_sigterm_ends_a_server_that_still_waits_for_zookeeper(deployment: Deployment) -> None:
    """The first process of a container ignores a signal without a handler."""
    settings = ["--set", "broker.id=9", "--set", "zookeeper.connect=127.0.0.1:1"]
    container = docker("run", "--detach", deployment.inspect("broker-1", ".Config.Image"), "broker", *settings).strip()
    try:
        wait_for(lambda: catches_sigterm(container), DEADLINE_S, "the signal is handled")
        docker("stop", "--time", "60", container)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", container).strip() == str(128 + signal.SIGTERM)
    finally:
        docker("rm", "--force", "--volumes", container)


def catches_sigterm(container: str) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", docker("exec", container, "cat", "/proc/1/status"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_broker_that_hangs_is_not_healthy(deployment: Deployment) -> None:
    check = ["python", "-m", "anabranch.health", "broker"]
    # A broker that other tests kept from running is unhealthy for a minute.
    wait_for(lambda: deployment.execute("broker-3", *check).returncode == 0, DEADLINE_S, "it serves")
    deployment.kill("broker-3", "STOP")
    try:
        hung = deployment.execute("broker-3", *check)
        assert (hung.returncode, "timed out" in hung.stderr) == (1, True)
    finally:
        deployment.kill("broker-3", "CONT")
    wait_for(lambda: deployment.execute("broker-3", *check).returncode == 0, DEADLINE_S, "it serves again")


def test_written_records_outlive_the_containers(deployment: Deployment) -> None:
    values = numbered(0, 100)
    create_topic(deployment.bootstrap, "kept", 1, replication_factor=REPLICAS)
    assert write(deployment.bootstrap, "kept", values) == []
    deployment.down()
    deployment.up()
    assert read(deployment.bootstrap, "kept", len(values)) == values
