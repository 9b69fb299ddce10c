"""A minute of faults on real processes. ``make soak`` runs for as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.soak.run import SoakConfig, soak

pytestmark = pytest.mark.integration

SECONDS = 30.0
SEED = 11
RATE = 900.0


@pytest.mark.parametrize("kills", [False, True], ids=["every kind of fault", "kill -9 every few seconds"])
def test_a_cluster_keeps_its_promises_under_faults(tmp_path: Path, kills: bool) -> None:
    config = SoakConfig(tmp_path / "soak", SECONDS, SEED, RATE, kills)
    result = trio.run(soak, config)
    print(result.summary())
    assert result.good, f"seed {SEED}:\n{result.summary()}"
    assert result.recorder.counts["Acked"] > SECONDS and sum(result.recorder.faults.values()) > 2
