"""The checks of ``anabranch audit``, each a function on DataFrames (``anabranch.audit.read_rows``).

Each returns the offending rows: topic, partition, offset, segment, position and message. docs/audit.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.audit.deliveries import (
    deliveries_that_go_back,
    early_deliveries,
    lines_that_are_none,
    read_deliveries,
    undecided_deliveries,
)
from anabranch.audit.key_order import broken_key_order, repeated_records
from anabranch.audit.row_checks import (
    broken_offsets,
    broken_sequences,
    diverging_replicas,
    leader_epochs_that_go_back,
    misplaced_records,
    promise_of,
    records_while_closed,
    repeated_batches,
    unreadable_batches,
    untrue_index_entries,
    without_aborted,
    wrong_control_batches,
    wrong_crcs,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "batches",
    "broken_key_order",
    "broken_offsets",
    "broken_sequences",
    "deliveries_that_go_back",
    "diverging_replicas",
    "early_deliveries",
    "leader_epochs_that_go_back",
    "lines_that_are_none",
    "misplaced_records",
    "promise_of",
    "read_deliveries",
    "records",
    "records_while_closed",
    "repeated_batches",
    "repeated_records",
    "undecided_deliveries",
    "unreadable_batches",
    "untrue_index_entries",
    "without_aborted",
    "wrong_control_batches",
    "wrong_crcs",
]


def batches(rows: DataFrame) -> DataFrame:
    """The first row of each batch."""
    return rows.where("batch_start")


def records(rows: DataFrame) -> DataFrame:
    """The rows of records, transaction markers included."""
    return rows.where("offset is not null")
