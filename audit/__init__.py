"""The audit for programs: ``run_audit`` checks a directory, and each check is a function on DataFrames.

    from anabranch.audit import run_audit
    report = run_audit("exported", order_by="json:sequence")

    from anabranch.audit import checks, read_rows
    rows = read_rows(spark, "exported", order_by="json:sequence")
    checks.misplaced_records(checks.records(rows)).show()

docs/audit.md describes the checks and their promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.audit.report import AuditReport, Check, Status, Violation
from anabranch.audit.run import audit_with, run_audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditReport", "Check", "Status", "Violation", "audit_with", "read_rows", "run_audit"]


def read_rows(spark: SparkSession, directory: str, *, order_by: str | None = None, view: str = "checks") -> DataFrame:
    """The rows for the checks. ``order_by`` is as for ``run_audit``; the checks of the order of keys need it.

    The view ``checks`` has every record; ``summary`` has batches, index entries and offending records.
    """
    from anabranch.audit.datasource import FORMAT_NAME, register

    register(spark)
    reader = spark.read.format(FORMAT_NAME).option("view", view)
    return (reader if order_by is None else reader.option("order_by", order_by)).load(directory)
