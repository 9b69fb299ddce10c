"""``python -m tests.soak --minutes 10 --seed 7``: faults on real processes, and the checker's verdict."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

import trio

from tests.soak.faults import kill_schedule, mixed_schedule
from tests.soak.run import SoakConfig, SoakResult, remove, soak


async def _until_a_signal(config: SoakConfig) -> SoakResult | None:
    """Run to the end. Returns the result, or None after SIGINT or SIGTERM.

    After a signal the current fault is undone, then everything is stopped.
    """
    result: SoakResult | None = None
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        nursery.start_soon(listen)
        result = await soak(config)
        nursery.cancel_scope.cancel()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="the duration of the run; 10 by default")
    parser.add_argument("--seed", type=int, default=None, help="the seed of the faults; random by default")
    parser.add_argument("--rate", type=float, default=1500.0, help="records a second, of all producers together")
    parser.add_argument("--kills", action="store_true", help="kill -9 every few seconds, without waiting for the ISRs")
    parser.add_argument("--only", action="append", default=[], help="use only this kind of fault; may be repeated")
    parser.add_argument("--no-resize", action="store_true", help="do not resize the topic")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a broker config key")
    parser.add_argument(
        "--directory", type=Path, default=None, help="a new directory for all files; kept if the run fails"
    )
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if given.seed is None else given.seed
    directory = given.directory or Path(tempfile.mkdtemp(prefix="anabranch-soak-")) / f"seed-{seed}"
    overrides = dict(setting.partition("=")[::2] for setting in given.set)
    schedule = kill_schedule if given.kills else mixed_schedule
    config = SoakConfig(
        directory,
        given.minutes * 60,
        seed,
        given.rate,
        schedule,
        tuple(given.only),
        overrides,
        resize=not (given.kills or given.no_resize),
    )
    print(f"seed {seed}, {given.minutes:g} minutes, in {directory}", flush=True)
    result = trio.run(_until_a_signal, config)
    if result is None:
        print(f"stopped by a signal; all files are in {directory}")
        return 130
    print(result.summary())
    if result.good:
        remove(config)
        return 0
    print(f"seed {seed}: the history and all files are in {directory}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
