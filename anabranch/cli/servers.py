"""``anabranch zookeeper | controller | broker``: one server in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from anabranch.cli.options import Settings
from anabranch.cli.signals import end_on_sigterm, wait_for_stop_signal
from anabranch.command_error import UsageError
from anabranch.runtime.properties_file import read_properties
from anabranch.zk_schemas.config_def import (
    REQUIRED,
    Between,
    ConfigDef,
    ConfigError,
    ConfigKey,
    ConfigType,
    NotEmpty,
    parse_properties,
)

Strict = Annotated[bool, Parameter(negative=())]
LogLevels = Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)]

ZOOKEEPER_CONFIGS = ConfigDef(
    "zookeeper",
    [
        ConfigKey("dataDir", ConfigType.STRING, REQUIRED, NotEmpty(), doc="Where the server keeps its data."),
        ConfigKey("clientPort", ConfigType.INT, 2181, Between(0, 65535), doc="Port for clients; 0 takes a free one."),
        ConfigKey("tickTime", ConfigType.INT, 1000, Between(100, 60_000), doc="The server's time unit in ms."),
    ],
)


def zookeeper(*, config: Path | None = None, set_: Settings = None) -> int:
    """Run a ZooKeeper server from the jars in PySpark's wheel until SIGTERM or Ctrl-C.

    Parameters
    ----------
    config
        A properties file with dataDir, clientPort, tickTime.
    set_
        key=value, wins over the file and the environment.
    """
    from anabranch.local.embedded_zookeeper import EmbeddedZookeeper

    given = parse_properties(read_properties(config), str(config)) if config is not None else {}
    given |= parse_properties("\n".join(set_ or []), "--set")
    values = ZOOKEEPER_CONFIGS.parse(given)
    server = EmbeddedZookeeper(values["dataDir"], client_port=values["clientPort"], tick_time_ms=values["tickTime"])
    with server:
        print(f"ZooKeeper serves at {server.connect_string}", flush=True)
        wait_for_stop_signal()
    return 0


def broker(
    *,
    config: Path | None = None,
    set_: Settings = None,
    strict: Strict = False,
    log_level: LogLevels = None,
    log_format: Literal["console", "json"] | None = None,
) -> int:
    """Run a broker until SIGTERM or Ctrl-C.

    Parameters
    ----------
    config
        A properties file with Kafka's keys (broker.id, zookeeper.connect, listeners, log.dirs, ...).
    set_
        key=value, wins over the file and the environment.
    strict
        Refuse to start if a config key has no effect; without this each such key is a warning.
    log_level
        LEVEL, or LOGGER=LEVEL for one logger and those below it (anabranch.broker=DEBUG); may be given many times.
    log_format
        The format of the log's lines.
    """
    end_on_sigterm()
    from anabranch.broker.__main__ import main

    return main([*_arguments(config, set_, strict), *_log_arguments(log_level, log_format)])


def controller(
    *,
    config: Path | None = None,
    set_: Settings = None,
    strict: Strict = False,
    log_level: LogLevels = None,
    log_format: Literal["console", "json"] | None = None,
) -> int:
    """Run a controller until SIGTERM or Ctrl-C.

    Parameters
    ----------
    config
        A properties file (controller.id, controller.listener, zookeeper.connect, ...).
    set_
        key=value, wins over the file and the environment.
    strict
        Refuse to start if a config key has no effect; without this each such key is a warning.
    log_level
        LEVEL, or LOGGER=LEVEL for one logger and those below it (anabranch.controller=DEBUG); may be given many times.
    log_format
        The format of the log's lines.
    """
    end_on_sigterm()
    from anabranch.controller.__main__ import main

    return main([*_arguments(config, set_, strict), *_log_arguments(log_level, log_format)])


def health(
    role: Literal["broker", "controller"],
    /,
    *,
    config: Path | None = None,
    set_: Settings = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check that a broker or controller on this machine serves, and name its background failures. Exit status 0 or 1.

    Parameters
    ----------
    role
        broker or controller.
    config
        The properties file of the server.
    set_
        key=value, wins over the file and the environment.
    json_
        Print the answer as JSON.
    """
    from anabranch.health import main

    return main([role, *_arguments(config, set_, False), *(["--json"] if json_ else [])])


def _arguments(config: Path | None, settings: list[str] | None, strict: bool) -> list[str]:
    arguments = ["--strict"] if strict else []
    arguments += [] if config is None else ["--config", str(config)]
    for setting in settings or []:
        arguments += ["--set", setting]
    return arguments


def _log_arguments(levels: list[str] | None, form: str | None) -> list[str]:
    """The flags of the log. Raises ``UsageError``: the server would name the key and the file instead of the flag."""
    from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS

    arguments = [] if form is None else ["--log-format", form]
    for level in levels or []:
        try:
            BROKER_CONFIGS["logging.levels"].parse(level)
        except ConfigError as error:
            raise UsageError(f"--log-level {level}: {error.detail}") from None
        arguments += ["--log-level", level]
    return arguments
