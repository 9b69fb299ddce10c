"""The sources of a server's config keys."""

from __future__ import annotations

import pytest

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.static_keys import gather

BOTH = pytest.mark.parametrize("table", [BROKER_CONFIGS, CONTROLLER_CONFIGS], ids=lambda table: str(table.kind))


@BOTH
def test_later_sources_override_earlier_ones(table: ConfigDef) -> None:
    kafka, ours = {"KAFKA_NUM_PARTITIONS": "2"}, {"ANABRANCH_NUM_PARTITIONS": "3"}
    assert gather(table, "num.partitions=1", "file", {}, []).values == {"num.partitions": "1"}
    assert gather(table, "num.partitions=1", "file", kafka, []).values == {"num.partitions": "2"}
    for environ in (kafka | ours, ours | kafka):
        assert gather(table, "num.partitions=1", "file", environ, []).values == {"num.partitions": "3"}
    given = gather(table, "num.partitions=1", "file", kafka | ours, ["num.partitions=4"])
    assert given.values == {"num.partitions": "4"}


@BOTH
def test_environment_variables_of_other_programs_set_no_key(table: ConfigDef) -> None:
    environ = {"KAFKA_HEAP_OPTS": "-Xmx1G", "NUM_PARTITIONS": "9", "HOME": "x"}
    assert gather(table, None, "", environ, []).values == {}


@BOTH
def test_an_unknown_key_of_the_file_is_kept_so_that_the_parser_can_refuse_it(table: ConfigDef) -> None:
    assert gather(table, "num.partition=1", "file", {}, []).values == {"num.partition": "1"}


@BOTH
def test_a_setting_without_a_value_is_refused(table: ConfigDef) -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions: --set needs key=value"):
        gather(table, None, "", {}, ["num.partitions"])


@BOTH
def test_an_error_names_the_source_that_set_its_key_last(table: ConfigDef) -> None:
    environ = {"KAFKA_NUM_PARTITIONS": "2", "ANABRANCH_NUM_PARTITIONS": "3"}

    def named(where: str, environ: dict[str, str], settings: list[str]) -> str:
        given = gather(table, "num.partitions=1", where, environ, settings)
        return str(given.named(ConfigError("num.partitions", "too few")))

    assert named("server.properties", {}, []) == "num.partitions: too few (in server.properties)"
    assert (
        named("server.properties", environ, [])
        == "num.partitions: too few (in the environment variable ANABRANCH_NUM_PARTITIONS)"
    )
    assert named("", environ, ["num.partitions=4"]) == "num.partitions: too few (on the command line)"
    assert named("", {}, []) == "num.partitions: too few"
