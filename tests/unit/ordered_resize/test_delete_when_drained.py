"""How long marked partitions are kept, by the topic's config keys."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY, LOSS_KEY, Marked


@pytest.mark.parametrize(
    ("policy", "given", "kept"),
    [
        ("delete", {}, Marked.EXPIRED),
        ("delete", {"retention.ms": -1}, Marked.FOR_EVER),
        ("delete", {"retention.ms": -1, LOSS_KEY: True}, Marked.FOR_EVER),
        ("delete", {DRAIN_KEY: True}, Marked.DRAINED),
        ("compact", {}, Marked.FOR_EVER),
        ("compact", {DRAIN_KEY: True}, Marked.FOR_EVER),
        ("compact", {LOSS_KEY: True}, Marked.DRAINED),
        ("compact,delete", {DRAIN_KEY: True}, Marked.EXPIRED),
        ("compact,delete", {"retention.ms": -1, DRAIN_KEY: True}, Marked.FOR_EVER),
        ("compact,delete", {LOSS_KEY: True}, Marked.DRAINED),
    ],
)
def test_config_keys_decide_how_long_marked_partitions_are_kept(
    policy: str, given: dict[str, Any], kept: Marked
) -> None:
    values = {"cleanup.policy": policy.split(","), "retention.ms": 1_000, DRAIN_KEY: False, LOSS_KEY: False}
    assert Marked.of(values | given) is kept
