"""``anabranch dump-log`` and ``kafka-dump-log`` on the same files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from bench.kafka_peer import run_tool

DEADLINE_S = 60.0
DUMPED = (
    ("", ".log", ()),
    ("", ".log", ("--deep-iteration",)),
    ("", ".log", ("--print-data-log",)),
    ("/__consumer_offsets", ".log", ("--offsets-decoder",)),
    ("/__transaction_state", ".log", ("--transaction-log-decoder",)),
    ("", ".index", ()),
    ("", ".index", ("--verify-index-only",)),
    ("", ".index", ("--index-sanity-check",)),
    ("", ".timeindex", ()),
    ("", ".txnindex", ()),
    ("", ".snapshot", ()),
)
"""The compared dumps: (part of the path, suffix of the files, options)."""
OURS = re.compile(r',"(?:incarnation|rewinds)":\d+')
"""Anabranch's tagged fields, which Kafka's tool skips."""
PARTITIONS = re.compile(r"partitions=\[([^]]*)]")
"""The partitions in a line. Kafka keeps them in a hash set, so their order is arbitrary."""


def assert_both_print_the_same(directories: Iterable[Path]) -> int:
    """Compare both tools for each kind of file and option. Returns how many lines were compared."""
    files = [path for directory in directories for path in sorted(directory.iterdir())]
    compared = 0
    for part, suffix, options in DUMPED:
        chosen = [str(path) for path in files if path.name.endswith(suffix) and path.stat().st_size]
        chosen = [path for path in chosen if part in path]
        if not chosen:
            continue
        theirs = run_tool("kafka-dump-log", "--files", ",".join(chosen), *options, timeout_s=DEADLINE_S)
        command = [sys.executable, "-m", "anabranch.cli.main", "dump-log", "--files", ",".join(chosen), *options]
        ours = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        expected = _lines(theirs.stdout)
        different = [pair for pair in zip_longest(_lines(OURS.sub("", ours.stdout)), expected) if pair[0] != pair[1]]
        assert not different, (suffix, options, different[:3])
        assert (ours.returncode, ours.stderr) == (0, "")
        compared += len(expected)
    return compared


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [PARTITIONS.sub(lambda found: f"partitions={sorted(found[1].split(','))}", line) for line in lines]
