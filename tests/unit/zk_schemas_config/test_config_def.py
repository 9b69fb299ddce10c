"""Config tables: the values that they parse, the values that they refuse, and the error texts."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.zk_schemas.config_def import (
    REQUIRED,
    Between,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    Matches,
    NotEmpty,
    OneOf,
    parse_properties,
)

TABLE = ConfigDef(
    "test",
    [
        ConfigKey("flag", ConfigType.BOOLEAN, False),
        ConfigKey("size.bytes", ConfigType.INT, 10, Between(1, 100)),
        ConfigKey("wait.ms", ConfigType.LONG, None, Between(0)),
        ConfigKey("ratio", ConfigType.DOUBLE, 0.5, Between(0, 1)),
        ConfigKey("policy", ConfigType.LIST, ["a"], OneOf(("a", "b"))),
        ConfigKey("name", ConfigType.STRING, REQUIRED, NotEmpty()),
        ConfigKey("secret", ConfigType.PASSWORD, None),
        ConfigKey("form", ConfigType.STRING, "1.0", Matches(r"\d\.\d", "a version")),
        ConfigKey("small", ConfigType.SHORT, 1),
    ],
)


def test_keys_that_are_not_given_have_their_defaults() -> None:
    assert TABLE.parse({"name": "n", "size.bytes": " 20 ", "policy": "b, a"}) == {
        "flag": False,
        "size.bytes": 20,
        "wait.ms": None,
        "ratio": 0.5,
        "policy": ["b", "a"],
        "name": "n",
        "secret": None,
        "form": "1.0",
        "small": 1,
    }


def test_a_default_list_is_not_shared() -> None:
    TABLE.parse({"name": "n"})["policy"].append("x")
    assert TABLE.parse({"name": "n"})["policy"] == ["a"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size.byte": 1, "name": "n"}, ["size.byte", "no such test config key", "did you mean size.bytes"]),
        ({}, ["name", "needs this key"]),
        ({"name": ""}, ["name", "must not be empty"]),
        ({"name": "n", "size.bytes": 101}, ["size.bytes", "101", "between 1 and 100"]),
        ({"name": "n", "size.bytes": "1.5"}, ["size.bytes", "'1.5'", "whole number"]),
        ({"name": "n", "size.bytes": 1.5}, ["size.bytes", "whole number"]),
        ({"name": "n", "size.bytes": True}, ["size.bytes", "whole number"]),
        ({"name": "n", "size.bytes": None}, ["size.bytes", "needs a value"]),
        ({"name": "n", "wait.ms": -1}, ["wait.ms", "-1", "at least 0"]),
        ({"name": "n", "wait.ms": 2**63}, ["wait.ms", "is outside the range of long"]),
        ({"name": "n", "small": 40_000}, ["small", "is outside the range of short"]),
        ({"name": "n", "ratio": "nan"}, ["ratio", "not a number"]),
        ({"name": "n", "flag": "yes"}, ["flag", "neither true nor false"]),
        ({"name": "n", "policy": "a,c"}, ["policy", "'c'", "a, b"]),
        ({"name": "n", "policy": 3}, ["policy", "not a list"]),
        ({"name": 3}, ["name", "not text"]),
        ({"name": "n", "form": "one"}, ["form", "a version"]),
    ],
)
def test_an_error_names_the_key_the_value_and_the_allowed_values(given: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        TABLE.parse(given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("flag", True, "true"), ("policy", ["a", "b"], "a,b"), ("ratio", 0.25, "0.25"), ("wait.ms", None, None)],
)
def test_format_is_the_reverse_of_parse(name: str, value: Any, text: str | None) -> None:
    assert TABLE[name].format(value) == text
    assert TABLE[name].parse(text) == value


def test_only_passwords_are_sensitive() -> None:
    assert [key.name for key in TABLE if key.sensitive] == ["secret"]


def test_a_table_with_a_repeated_key_is_refused() -> None:
    key = ConfigKey("k", ConfigType.INT, 1)
    with pytest.raises(ValueError, match="declared twice"):
        ConfigDef("test", [key, key])


def test_properties_are_parsed_with_comments_and_continued_lines() -> None:
    text = "# comment\n! too\n\na=1\nb : two words \nlist=x,\\\n  y\na=2\nurl=PLAINTEXT://h:1\n"
    assert parse_properties(text) == {"a": "2", "b": "two words", "list": "x,y", "url": "PLAINTEXT://h:1"}


def test_a_line_without_a_separator_is_named() -> None:
    with pytest.raises(ConfigError, match=r"line 2 of f is not key=value"):
        parse_properties("a=1\nbroken\n", "f")
