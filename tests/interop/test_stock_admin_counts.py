"""Stock admin clients ask for partition counts: a topic with records gets only counts that stock producers follow."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from tests.interop.clients import LIBRARIES, Item
from tests.support.resize.resizes import DEADLINE_S, create_resizable, is_settled, resize, with_admin

pytestmark = pytest.mark.interop

RECORDS = [Item(None, b"%d" % number) for number in range(3)]
"""Records without keys, which may be in any partition."""


def by_confluent_kafka(bootstrap: str, topic: str, count: int) -> str:
    from confluent_kafka import KafkaException, admin

    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    (future,) = client.create_partitions([admin.NewPartitions(topic, count)]).values()
    try:
        future.result(DEADLINE_S)
    except KafkaException as error:
        return f"{error.args[0].name()} {error.args[0].str()}"
    return ""


def by_kafka_python(bootstrap: str, topic: str, count: int) -> str:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    client = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        client.create_partitions({topic: count})
    except KafkaError as error:
        return str(error)
    finally:
        client.close()
    return ""


def by_aiokafka(bootstrap: str, topic: str, count: int) -> str:
    async def run() -> str:
        from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
        from aiokafka.errors import KafkaError

        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            await client.create_partitions({topic: NewPartitions(count)})
        except KafkaError as error:
            return str(error)
        finally:
            await client.close()
        return ""

    return asyncio.run(run())


ADMINS: Mapping[str, Callable[[str, str, int], str]] = {
    "confluent-kafka": by_confluent_kafka,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}
"""Ask for a count. They return the error as the library shows it, or an empty string."""


@pytest.mark.parametrize("library", sorted(ADMINS))
def test_a_stock_admin_client_grows_a_topic_with_records_only_to_doublings(
    cluster: Cluster, fresh_name: Callable[[str], str], library: str
) -> None:
    bootstrap, topic, ask = cluster.bootstrap, fresh_name("stock-admin"), ADMINS[library]
    create_resizable(bootstrap, topic, 2)

    def becomes(count: int) -> None:
        assert ask(bootstrap, topic, count) == ""
        wait_for(lambda: is_settled(bootstrap, topic, count), DEADLINE_S, f"{count} partitions")

    becomes(3)  # nothing was written
    LIBRARIES[library].produce(bootstrap, topic, RECORDS, "none")
    for count, nearest in ((5, 8), (2, 4)):
        refused = ask(bootstrap, topic, count)
        assert f"{topic} has records." in refused and f"works is {nearest}." in refused, refused
        assert "`anabranch topics alter" in refused and "ordered.delivery.stock.admin=accept" in refused, refused
    becomes(4)
    allowed = {"ordered.delivery.stock.admin": "accept"}
    with_admin(bootstrap, lambda admin: admin.incremental_alter_configs(topics={topic: allowed}))
    becomes(5)


def test_our_command_spares_recent_stock_producers_unless_it_is_forced(
    cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    bootstrap, topic = cluster.bootstrap, fresh_name("spared")
    create_resizable(bootstrap, topic, 2)

    def alter(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "anabranch.cli.main", "topics", "alter", topic, *arguments, "-b", bootstrap]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)

    assert alter("--partitions", "3", "--wait").returncode == 0  # nobody writes
    resize(bootstrap, topic, 4)
    LIBRARIES["confluent-kafka"].produce(bootstrap, topic, RECORDS, "none")
    for count in ("5", "2"):  # a merge to the initial count too
        for more in ((), ("--dry-run",)):
            refused = alter("--partitions", count, *more)
            output = refused.stdout + refused.stderr
            assert refused.returncode == 1, refused
            assert f"wrote to {topic} within" in output and "--force" in output, output
    done = alter("--partitions", "5", "--force", "--wait")
    assert done.returncode == 0 and f"wrote to {topic} within" in done.stderr, done
