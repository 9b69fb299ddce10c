"""The sources of a server's config keys."""

from __future__ import annotations

import pytest

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.static_keys import gather

BOTH = pytest.mark.parametrize("table", [BROKER_CONFIGS, CONTROLLER_CONFIGS], ids=lambda table: str(table.kind))


@BOTH
def test_later_sources_win(table: ConfigDef) -> None:
    kafka, ours = {"KAFKA_NUM_PARTITIONS": "2"}, {"ANABRANCH_NUM_PARTITIONS": "3"}
    assert gather(table, "num.partitions=1", "file", {}, []) == {"num.partitions": "1"}
    assert gather(table, "num.partitions=1", "file", kafka, []) == {"num.partitions": "2"}
    for environ in (kafka | ours, ours | kafka):
        assert gather(table, "num.partitions=1", "file", environ, []) == {"num.partitions": "3"}
    assert gather(table, "num.partitions=1", "file", kafka | ours, ["num.partitions=4"]) == {"num.partitions": "4"}


@BOTH
def test_variables_of_other_programs_set_nothing(table: ConfigDef) -> None:
    environ = {"KAFKA_HEAP_OPTS": "-Xmx1G", "NUM_PARTITIONS": "9", "HOME": "x"}
    assert gather(table, None, "", environ, []) == {}


@BOTH
def test_a_key_of_the_file_that_the_table_lacks_is_kept_for_the_parser_to_refuse(table: ConfigDef) -> None:
    assert gather(table, "num.partition=1", "file", {}, []) == {"num.partition": "1"}


@BOTH
def test_a_setting_needs_a_value(table: ConfigDef) -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions: --set needs key=value"):
        gather(table, None, "", {}, ["num.partitions"])
