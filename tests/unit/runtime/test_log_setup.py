"""A process's log lines and their format: levels by logger, for structlog and the standard library alike."""

from __future__ import annotations

import argparse
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from anabranch.runtime import log_setup
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import ConfigError
from anabranch.zk_schemas.key_rules import LOG_LEVELS

ONE, OTHER = "anabranch.broker.one", "anabranch.controller.other"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the earlier configuration afterwards; the loggers of these tests take their parents' levels."""
    handlers, level, before = list(logging.root.handlers), logging.root.level, structlog.get_config()
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    for name in ("anabranch", "anabranch.broker", ONE, OTHER, "kazoo"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.configure(**before)


def lines(stream: io.StringIO) -> list[str]:
    found = stream.getvalue().splitlines()
    stream.truncate(0)
    stream.seek(0)
    return found


def log_at_each_level(word: str) -> None:
    """Log a line at each level, by both libraries."""
    of_structlog, of_library = structlog.get_logger(ONE), logging.getLogger(OTHER)
    for level in ("debug", "info", "warning", "error"):
        getattr(of_structlog, level)(f"{word}.{level}", partition="t-0")
        getattr(of_library, level)("%s %s", word, level)


def events(stream: io.StringIO) -> list[tuple[str, str]]:
    return [(line["logger"], line["level"]) for line in map(json.loads, lines(stream))]


def test_lines_of_structlog_and_of_logging_have_the_same_fields() -> None:
    stream = io.StringIO()
    log_setup.begin(stream, form=log_setup.JSON)
    structlog.get_logger(ONE).info("log.opened", partition="t-0", raw=b"\xff")
    logging.getLogger(OTHER).warning("what %s", "happened")
    first, second = map(json.loads, lines(stream))
    assert list(first)[:4] == list(second)[:4] == ["timestamp", "level", "logger", "event"]
    assert (first["event"], first["level"], first["logger"], first["partition"]) == ("log.opened", "info", ONE, "t-0")
    assert (second["event"], second["level"], second["logger"]) == ("what happened", "warning", OTHER)
    assert first["timestamp"] <= second["timestamp"]


def test_a_line_of_a_library_has_a_stable_event_and_its_text_as_message() -> None:
    stream = io.StringIO()
    log_setup.begin(stream, form=log_setup.JSON)
    logging.getLogger("kazoo.client").warning("Connection dropped: %s", "socket")
    (line,) = map(json.loads, lines(stream))
    assert (line["logger"], line["event"]) == ("kazoo.client", "kazoo.message")
    assert line["message"] == "Connection dropped: socket"


def test_a_console_line_begins_with_timestamp_level_logger_and_event() -> None:
    stream = io.StringIO()
    log_setup.begin(stream)
    structlog.get_logger(ONE).warning("log.opened", partition="t-0")
    (line,) = lines(stream)
    names = [pair.partition("=")[0] for pair in line.split(" ")]
    assert names == ["timestamp", "level", "logger", "event", "partition"]
    assert "event='log.opened'" in line


@pytest.mark.parametrize("form", log_setup.FORMATS)
def test_an_exception_is_in_its_line(form: str) -> None:
    stream = io.StringIO()
    log_setup.begin(stream, form=form)
    try:
        raise ValueError("boom\nsecond line")
    except ValueError:
        structlog.get_logger(ONE).error("task.failed", exc_info=True)
        logging.getLogger(OTHER).exception("failed")
    found = lines(stream)
    assert len(found) == 2
    assert all("ValueError: boom" in line and "second line" in line for line in found)


def test_a_level_applies_to_a_logger_and_its_children_and_changes_while_the_process_runs() -> None:
    stream = io.StringIO()
    log_setup.begin(stream, ["warn", "anabranch.broker=DEBUG"], log_setup.JSON)
    log_at_each_level("a")
    assert events(stream) == [
        (ONE, "debug"),
        (ONE, "info"),
        (ONE, "warning"),
        (OTHER, "warning"),
        (ONE, "error"),
        (OTHER, "error"),
    ]
    log_setup.set_level(ONE, "FATAL")
    log_setup.set_level("root", "ERROR")
    log_at_each_level("b")
    assert events(stream) == [(OTHER, "error")]
    log_setup.set_level(ONE, None)
    log_at_each_level("c")
    assert [name for name, _ in events(stream)] == [ONE] * 3 + [ONE, OTHER]


def test_the_levels_in_force_are_listed_by_logger() -> None:
    log_setup.begin(io.StringIO(), ["INFO", f"{ONE}=TRACE"])
    levels = log_setup.levels()
    assert (levels["root"], levels[ONE], levels["kazoo"]) == ("INFO", "TRACE", "WARN")
    assert levels["anabranch.runtime.log_setup"] == "INFO", "this logger has not logged yet"
    assert "anabranch" in log_setup.names() and "anabranch.no_such_module" not in log_setup.names()


def test_command_line_flags_become_config_keys() -> None:
    parser = argparse.ArgumentParser()
    log_setup.add_arguments(parser)
    given = parser.parse_args(["--log-level", "WARN", "--log-level", "kazoo=DEBUG", "--log-format", "json"])
    assert log_setup.settings(given) == ["logging.levels=WARN,kazoo=DEBUG", "logging.format=json"]
    assert log_setup.settings(parser.parse_args([])) == []


@pytest.mark.parametrize("wrong", ["LOUD", "anabranch=", "a b=INFO", "=INFO", "INFO=anabranch"])
def test_text_that_is_no_level_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="LEVEL or LOGGER=LEVEL"):
        BROKER_CONFIGS.parse({"broker.id": "1", "zookeeper.connect": "z:1", "logging.levels": wrong})


def test_the_config_key_accepts_every_level() -> None:
    assert tuple(log_setup.LEVELS) == LOG_LEVELS
