"""Output of ``anabranch up`` once the cluster serves."""

from __future__ import annotations

from anabranch.cli.up import welcome
from anabranch.local.cluster import LocalCluster
from anabranch.local.plan import LocalClusterConfig, plan_brokers, plan_controllers
from anabranch.local.supervisor import Supervisor


def test_the_addresses_of_controllers_are_printed() -> None:
    config = LocalClusterConfig("d", brokers=1, controllers=2, console_port=8480)
    cluster = LocalCluster(
        config,
        "127.0.0.1:2181",
        plan_brokers(config, "127.0.0.1:2181", [9092], [9404]),
        plan_controllers(config, "127.0.0.1:2181", [9100, 9101], [9405, 9406]),
        Supervisor(report_line=print, on_restart=print),
    )
    output = welcome(cluster, "anabranch")
    assert "\nControllers 1000 at 127.0.0.1:9100, 1001 at 127.0.0.1:9101 (for --bootstrap-controller)\n" in output
