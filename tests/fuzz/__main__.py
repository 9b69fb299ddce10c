"""``python -m tests.fuzz --minutes 10 --seed 7``: hostile frames to a real broker and a real controller."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="the duration of the run; 10 by default")
    parser.add_argument("--seed", type=int, default=None, help="the seed of the frames; random by default")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if given.seed is None else given.seed
    directory = Path(tempfile.mkdtemp(prefix="anabranch-fuzz-"))
    print(f"seed {seed}, {given.minutes:g} minutes, in {directory}", flush=True)
    end = time.monotonic() + 60 * given.minutes
    result = trio.run(fuzz, directory / "cluster", seed, lambda _count: time.monotonic() < end)
    print(result.summary())
    if result.problems:
        print(f"seed {seed}: the logs are in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
