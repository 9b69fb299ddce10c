"""The list of a log's segments."""

from __future__ import annotations

import pytest

from anabranch.broker.log.segment_list import SegmentsNotEmptyError
from tests.support.log.batches import batch_of
from tests.support.log.log_fixture import LogFixture


@pytest.mark.parametrize("segments", [1, 2])
def test_a_log_with_records_does_not_begin_at_another_offset(log_fixture: LogFixture, segments: int) -> None:
    log = log_fixture.create()
    log.append_as_leader(bytearray(batch_of(1)), 0)
    if segments == 2:
        log.roll()
    before = sorted(path.name for path in log_fixture.file("").iterdir())
    with pytest.raises(SegmentsNotEmptyError, match=f"{segments} segments"):
        log._segments.rename_empty(50, 0)
    assert sorted(path.name for path in log_fixture.file("").iterdir()) == before
