"""The committed generated modules match the tables, and every API has one."""

from __future__ import annotations

import pathlib

import pytest

from anabranch.protocol import generated
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.generate import table_modules, write_all
from anabranch.protocol.schema import TableError, Versions, field, message


def test_generated_modules_are_up_to_date(tmp_path: pathlib.Path) -> None:
    write_all(tmp_path)
    committed = pathlib.Path(generated.__path__[0])
    fresh = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert sorted(fresh) == sorted(path.name for path in committed.glob("*.py"))
    stale = [name for name, text in fresh.items() if (committed / name).read_text() != text]
    assert not stale, "run: python -m anabranch.protocol.generate"


def test_every_api_has_a_table() -> None:
    assert {key.name.lower() for key in ApiKey} == set(table_modules()) - {
        "consumer_offsets",
        "consumer_protocol",
        "transaction_log",
    }


@pytest.mark.parametrize("key", list(ApiKey))
def test_the_request_and_response_classes_of_an_api_have_its_key_and_versions(key: ApiKey) -> None:
    api = API[key]
    assert api.request.API_KEY == api.response.API_KEY == key
    versions = set(range(api.min_version, api.max_version + 1))
    assert set(api.request.DECODERS) == set(api.response.ENCODERS) == versions
    assert api.request.__name__ == api.name + "Request"


def test_version_ranges_are_parsed() -> None:
    assert list(Versions.parse("2-4")) == [2, 3, 4]
    assert list(Versions.parse("none")) == []
    assert 9 in Versions.parse("9+")
    assert 8 not in Versions.parse("9+")


def test_tables_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(TableError, match="known type"):
        field("a", "int33", "0+")
    with pytest.raises(TableError, match="must be a tagged field"):
        field("a", "Thing", "0+", fields=[field("b", "int8", "0+")])
    with pytest.raises(TableError, match="flexible"):
        message("M", versions="0-1", flexible="1+", fields=[field("a", "int8", "0+", tag=0)])
    with pytest.raises(TableError, match="ascend"):
        message(
            "M",
            versions="0",
            flexible="0+",
            fields=[field("a", "int8", "0+", tag=1), field("b", "int8", "0+", tag=0)],
        )
