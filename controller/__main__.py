"""``python -m anabranch.controller --config FILE --set key=value``: one controller in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from anabranch.controller.config import ControllerConfig
from anabranch.controller.process import run
from anabranch.runtime.env import ZkError
from anabranch.runtime.real_trio import real_env
from anabranch.runtime.server_program import ServerProgram
from anabranch.runtime.zk_kazoo import KazooZk
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.features import IncompatibleFeaturesError
from anabranch.zk_schemas.static_keys import for_controller


async def _run(config: ControllerConfig, zk: KazooZk) -> None:
    env = real_env(zk=zk, keep_alive_s=config.socket_keepalive_timeout_ms / 1000)
    await run(config, env, zk_latency=zk.latency_ms)


PROGRAM = ServerProgram(
    kind="controller",
    table=CONTROLLER_CONFIGS,
    acting=for_controller,
    parse=ControllerConfig.parse,
    values=lambda config: config,
    run=_run,
    failures=(ZkError, OSError, IncompatibleFeaturesError),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a controller until SIGTERM or SIGINT. Returns the exit status."""
    return PROGRAM.main(argv)


if __name__ == "__main__":
    sys.exit(main())
