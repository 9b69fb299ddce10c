"""Anabranch's command line and console on a cluster of Kafka, which has no ordered resizes."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the console needs the extra [console]")

from anabranch.cli.main import main
from anabranch.sync import Producer
from bench.kafka_peer import KafkaCluster
from bench.maven import PeerUnavailable

pytestmark = pytest.mark.interop

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The addresses of a cluster with one record in topic ``t``, and a group ``g`` that has not read the record."""
    try:
        with KafkaCluster(tmp_path_factory.mktemp("kafka"), heap="256m", short=True) as cluster:
            run(cluster.bootstrap, "topics", "create", "t", "--partitions", "3")
            with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                producer.send("t", key=b"k", value=b"<b>bold</b>").result()
            run(cluster.bootstrap, "groups", "reset-offsets", "g", "--topic", "t", "--to-earliest")
            yield cluster.bootstrap
    except (PeerUnavailable, subprocess.TimeoutExpired) as error:
        pytest.skip(str(error))


def run(bootstrap: str, *arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "-b", bootstrap])
    assert not ended.value.code, arguments


def test_topics_alter_waits_until_a_topic_of_kafka_has_grown(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(bootstrap, "topics", "create", "grown", "--partitions", "1")
    run(bootstrap, "topics", "alter", "grown", "--partitions", "2", "--wait")
    run(bootstrap, "topics", "describe", "grown")
    output = capsys.readouterr()
    assert "altered grown\ngrown has 2 partitions\ngrown  id" in output.out and "2 partitions" in output.out
    assert output.err == ""


def test_the_console_shows_a_cluster_of_kafka(bootstrap: str) -> None:
    line = [sys.executable, "-m", "anabranch.cli.main", "console", "-b", bootstrap, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as console:
        try:
            assert console.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", console.stdout.readline())
            assert found is not None
            for path, shown in {
                "/": 'data-label="release">\u2013</td>',  # Kafka's brokers report no release of Anabranch
                "/topics": 'href="/topics/t"',
                "/topics/t": "not kept across resizes",
                "/topics/t/messages": "&lt;b&gt;bold&lt;/b&gt;",
                "/groups": "/groups/g",
                "/groups/g": "1 record",
                "/change/resize?topic=t&count=1": "<p>3 → 1 partition.</p>",  # the answer does not name keys
                "/configs/topic/t": "cleanup.policy",
                "/configs/broker/1": "broker.rack",
            }.items():
                with urllib.request.urlopen(found[0] + path, timeout=DEADLINE_S) as answer:
                    page = answer.read().decode()
                assert shown in page, path
                assert ">None<" not in page and "<b>bold" not in page, path
        finally:
            console.terminate()
