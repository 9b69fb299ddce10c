"""``anabranch export``: a topic's segment files, for the audit or for keeping."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter

from anabranch import Admin
from anabranch.cli.errors import CommandError
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag
from anabranch.exporting import ExportReport, export_topic


def export(
    *,
    topic: str,
    to: Path,
    log_dir: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=False)] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Copy a topic's segment files up to the high watermark, with a manifest for the audit.

    Parameters
    ----------
    topic
        The topic.
    to
        A new or empty directory.
    log_dir
        BROKER=PATH: where that broker's log directory is seen from here, when not where the broker says.
    """
    directories = {}
    for setting in log_dir or []:
        broker, separator, path = setting.partition("=")
        if not separator or not broker.isdigit():
            raise CommandError(f"--log-dir {setting}: expected BROKER=PATH, e.g. --log-dir 1=/mnt/broker-1")
        directories[int(broker)] = Path(path)

    async def run() -> ExportReport:
        async with Admin(bootstrap_servers=bootstrap_server) as admin:
            return await export_topic(admin, topic, to, directories)

    report = anyio.run(run)
    if json_:
        print(json.dumps(asdict(report), indent=2))
    else:
        print(f"{report.segments} segment files of {report.partitions} partitions, {report.bytes:,} bytes, in {to}")
        print(f"anabranch audit {to}")
    return 0
