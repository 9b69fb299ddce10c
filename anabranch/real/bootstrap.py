"""The bootstrap servers of a client that is given none."""

from __future__ import annotations

import os
from typing import TypeVar

from anabranch.client.config import BOOTSTRAP_VARIABLE, parse_servers
from anabranch.client.options import ClientOptions

Options = TypeVar("Options", bound=ClientOptions)


def with_bootstrap(config: Options) -> Options:
    """The config with the servers of ``ANABRANCH_BOOTSTRAP_SERVER``, if it names none and the variable is not empty.

    Raises ``ConfigError``, which names the variable.
    """
    servers = os.environ.get(BOOTSTRAP_VARIABLE)
    if servers and "bootstrap_servers" not in config:
        config["bootstrap_servers"] = parse_servers(BOOTSTRAP_VARIABLE, servers)
    return config
