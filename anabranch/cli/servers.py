"""``anabranch zookeeper | controller | broker``: one server in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Settings = Annotated[list[str] | None, Parameter(name="--set", negative=(), consume_multiple=False)]
"""``--set key=value``, as often as wanted; it wins over the file and the environment."""


def broker(*, config: Path | None = None, set_: Settings = None) -> int:
    """Run a broker until SIGTERM or Ctrl-C.

    Parameters
    ----------
    config
        A properties file with Kafka's keys (broker.id, zookeeper.connect, listeners, log.dirs, ...).
    set_
        key=value, wins over the file; may be given many times.
    """
    from broker.__main__ import main

    return main(_arguments(config, set_))


def controller(*, config: Path | None = None, set_: Settings = None) -> int:
    """Run a controller until SIGTERM or Ctrl-C.

    Parameters
    ----------
    config
        A properties file (controller.id, controller.listener, zookeeper.connect, ...).
    set_
        key=value, wins over the file; may be given many times.
    """
    from controller.__main__ import main

    return main(_arguments(config, set_))


def _arguments(config: Path | None, settings: list[str] | None) -> list[str]:
    arguments = [] if config is None else ["--config", str(config)]
    for setting in settings or []:
        arguments += ["--set", setting]
    return arguments
