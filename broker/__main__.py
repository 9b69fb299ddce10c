"""``python -m anabranch.broker --config FILE --set key=value``: one broker in the foreground."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence

from anabranch.broker.config import BrokerConfig
from anabranch.broker.link.registration import DuplicateBrokerError
from anabranch.broker.log.log_manager import LogDirError
from anabranch.broker.process import run
from anabranch.runtime.env import ZkError
from anabranch.runtime.real_trio import real_env
from anabranch.runtime.server_program import ServerProgram
from anabranch.runtime.zk_kazoo import KazooZk
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.features import IncompatibleFeaturesError
from anabranch.zk_schemas.static_keys import for_broker


def _parse(given: Mapping[str, str]) -> BrokerConfig:
    return BrokerConfig.from_given(given, socket.gethostname())


async def _run(config: BrokerConfig, zk: KazooZk) -> None:
    env = real_env(zk=zk, keep_alive_s=config.values.socket_keepalive_timeout_ms / 1000)
    await run(config, env, zk_latency=zk.latency_ms)


PROGRAM = ServerProgram(
    kind="broker",
    table=BROKER_CONFIGS,
    acting=for_broker,
    parse=_parse,
    values=lambda config: config.values,
    run=_run,
    failures=(LogDirError, DuplicateBrokerError, IncompatibleFeaturesError, ZkError, OSError),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT. Returns the exit status."""
    return PROGRAM.main(argv)


if __name__ == "__main__":
    sys.exit(main())
