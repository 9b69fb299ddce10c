"""``deploy/prometheus`` and the dashboard with promtool: for artificial series each alert is inactive, then fires."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.seen.prometheus_tools import CONFIG, RULES, expressions, promtool, rules

pytestmark = pytest.mark.integration

TURN_M = 30
"""The minutes until the fault."""
LABELS = {"job": "anabranch", "instance": "a:1"}


class Series(NamedTuple):
    """The values of each minute, first without the fault (``well``), then with it (``wrong``). ``_`` is no value."""

    name: str
    well: str
    wrong: str
    labels: dict[str, str] = {}


class Case(NamedTuple):
    series: list[Series]
    labels: dict[str, str] = {}
    """The labels of the alert, besides its severity."""


K, A = "kafka_controller_kafkacontroller", "anabranch"
GROUP = {"consumergroup": "g", "topic": "t"}
WAIT = {**GROUP, "partition": "0", "waiting": "one", "owner": "two"}
DRAIN = {"topic": "t", "partition": "3", "group": "g", "why": "read"}
OF_GROUP = {"topic": "t", "group": "g"}
ZERO, ONE = "0", "1"
CASES = {
    "AnabranchProcessDown": Case([Series("up", ONE, ZERO)], LABELS),
    "AnabranchNoActiveController": Case([Series(f"{K}_activecontrollercount", ONE, ZERO)]),
    "AnabranchOfflinePartitions": Case([Series(f"{K}_offlinepartitionscount", ZERO, "2")]),
    "AnabranchUnderMinIsr": Case(
        [Series("kafka_server_replicamanager_underminisrpartitioncount", ZERO, ONE)], {"instance": "a:1"}
    ),
    "AnabranchUnderReplicatedPartitions": Case(
        [Series("kafka_server_replicamanager_underreplicatedpartitions", ZERO, ONE)], {"instance": "a:1"}
    ),
    "AnabranchUncleanElection": Case(
        [Series("kafka_controller_controllerstats_uncleanleaderelections_total", ZERO, ONE)], LABELS
    ),
    "AnabranchZookeeperAway": Case(
        [Series(f"{A}_zookeeper_session_state", ONE, ZERO, {"state": "connected"})], {**LABELS, "state": "connected"}
    ),
    "AnabranchOfflineReplicas": Case([Series("kafka_server_replicamanager_offlinereplicacount", ZERO, ONE)], LABELS),
    "AnabranchLogDirLost": Case(
        [Series("kafka_log_logmanager_logdirectoryoffline", ZERO, ONE, {"logDirectory": "/d"})],
        {**LABELS, "logDirectory": "/d"},
    ),
    "AnabranchRecordsAheadOfClock": Case([Series(f"{A}_logs_ahead_of_clock", ZERO, ONE)], LABELS),
    "AnabranchDiskAlmostFull": Case(
        [
            Series(f"{A}_log_dir_free_bytes", "11", "9", {"path": "/d"}),
            Series(f"{A}_log_dir_bytes", "100", "100", {"path": "/d"}),
        ],
        {**LABELS, "path": "/d"},
    ),
    "AnabranchBackgroundFailing": Case([Series(f"{A}_background_failing", ZERO, ONE)], LABELS),
    "AnabranchLoopHeldUp": Case(
        [
            Series(f"{A}_loop_lag_seconds_count", "0+600", "18000+600"),
            Series(f"{A}_loop_lag_seconds_bucket", "0+600", "17900+500", {"le": "0.5"}),
        ],
        LABELS,
    ),
    "AnabranchFewDescriptorsLeft": Case(
        [Series("process_open_fds", "80", "81"), Series("process_max_fds", "100", "100")], LABELS
    ),
    "AnabranchGroupBehind": Case(
        [Series("kafka_consumergroup_lag_seconds", "300", "301", {**GROUP, "partition": "0"})], GROUP
    ),
    "AnabranchMemberWaits": Case([Series(f"{A}_consumergroup_wait_seconds", "300", "301", WAIT)], WAIT),
    "AnabranchResizeStuck": Case([Series(f"{A}_unfinished_resizes", ZERO, ONE)]),
    "AnabranchDrainWaits": Case([Series(f"{A}_resize_wait_seconds", "3600", "3601", DRAIN)], DRAIN),
    "AnabranchFrozenTopics": Case([Series(f"{A}_frozen_topics", ZERO, ONE)]),
    "AnabranchGivenUpStep": Case(
        [Series(f"{A}_given_up_steps_total", "_", ONE, {"error": "E"})], {**LABELS, "error": "E"}
    ),
    "AnabranchOrderMayBeLost": Case([Series(f"{A}_withhold_let_go_total", "_", ONE, OF_GROUP)], {**LABELS, **OF_GROUP}),
    "AnabranchUnreadRecordsExpire": Case(
        [Series(f"{A}_retention_warnings_total", "_", ONE, OF_GROUP)], {**LABELS, **OF_GROUP}
    ),
}
AGAIN = {
    "AnabranchGivenUpStep": Series(f"{A}_given_up_steps_total", ONE, "2", {"error": "E"}),
    "AnabranchOrderMayBeLost": Series(f"{A}_withhold_let_go_total", ONE, "2", OF_GROUP),
    "AnabranchUnreadRecordsExpire": Series(f"{A}_retained_records_removed_total", ONE, "2", OF_GROUP),
}
"""For each alert: a case in which the counter is above zero before the fault."""


def test_prometheus_accepts_the_files() -> None:
    for kind, path in (("config", CONFIG), ("rules", RULES)):
        done = promtool("check", kind, str(path))
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    records = [{"record": f"q:{number}", "expr": expression} for number, (_, expression) in enumerate(expressions())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert {rule["alert"] for rule in rules()} == set(CASES)


def written(series: Series) -> dict[str, str]:
    labels = ", ".join(f'{name}="{value}"' for name, value in {**LABELS, **series.labels}.items())
    well = f"_x{TURN_M}" if series.well == "_" else f"{series.well}x{TURN_M - 1}"
    return {"series": f"{series.name}{{{labels}}}", "values": f"{well} {series.wrong}x60"}


def minutes(text: str) -> int:
    return {"": 0, "30s": 1}.get(text) or int(text.rstrip("m") or 0)


def check(tmp_path: Path, rule: dict[str, Any], case: Case) -> None:
    """Check a case with promtool, on a rule without annotations: promtool compares annotations only as a whole."""
    bare = {key: value for key, value in rule.items() if key != "annotations"}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [bare]}]}))
    fires = {"exp_labels": {**case.labels, "severity": rule["labels"]["severity"]}}
    test = {
        "interval": "1m",
        "input_series": [written(series) for series in case.series],
        "alert_rule_test": [
            {"eval_time": f"{TURN_M - 1}m", "alertname": rule["alert"], "exp_alerts": []},
            {
                "eval_time": f"{TURN_M + minutes(rule.get('for', '')) + 5}m",
                "alertname": rule["alert"],
                "exp_alerts": [fires],
            },
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_fires_only_after_its_condition_is_met(tmp_path: Path, rule: dict[str, Any]) -> None:
    check(tmp_path, rule, CASES[rule["alert"]])


@pytest.mark.parametrize("rule", [rule for rule in rules() if rule["alert"] in AGAIN], ids=lambda rule: rule["alert"])
def test_an_alert_on_a_counter_fires_when_the_counter_rises_again(tmp_path: Path, rule: dict[str, Any]) -> None:
    check(tmp_path, rule, Case([AGAIN[rule["alert"]]], CASES[rule["alert"]].labels))
