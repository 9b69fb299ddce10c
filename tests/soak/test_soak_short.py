"""A minute of faults on real processes. ``make soak`` runs for any time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.soak.faults import beyond_schedule, mixed_schedule
from tests.soak.run import PARTITIONS, SoakConfig, soak

pytestmark = pytest.mark.integration

SECONDS = 30.0
SEED = 11
RATE = 900.0


def test_a_cluster_keeps_its_promises_under_faults(tmp_path: Path) -> None:
    result = trio.run(soak, SoakConfig(tmp_path / "soak", SECONDS, SEED, RATE, mixed_schedule))
    print(result.summary())
    assert result.good, f"seed {SEED}:\n{result.summary()}"
    counts, faults = result.recorder.counts, result.recorder.faults
    assert counts["Acked"] > SECONDS and faults.total() - faults["resize"] > 1
    assert counts["Created"] > PARTITIONS, "the topic never grew"


def test_the_checker_finds_the_loss_of_unsynced_bytes_on_every_broker(tmp_path: Path) -> None:
    """Every broker loses its unsynced bytes, and the checker must find the loss.

    The checker finds missing records, or other records at their offsets if as many were written afterwards.
    """
    result = trio.run(soak, SoakConfig(tmp_path / "soak", SECONDS, SEED, RATE, beyond_schedule, resize=False))
    assert {"lost_acknowledged", "inconsistent_offsets"} & {violation.check for violation in result.violations}
