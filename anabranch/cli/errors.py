"""Errors as a user of the command line sees them: one line with the error and its remedy."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Mapping

from anabranch.cli import exit_status
from anabranch.cli.output import print_json
from anabranch.command_error import CommandError
from anabranch.local.embedded_zookeeper import ZookeeperUnavailableError
from anabranch.protocol.errors import KafkaError
from anabranch.view.record_text import InputError
from anabranch.zk_schemas.config_def import ConfigError


def report_error(error: BaseException) -> int:
    """Print ``error`` on stderr and return the exit status.

    Expected errors take one line. A defect shows its traceback only with ``ANABRANCH_TRACEBACK=1``.
    """
    error = _single_cause(error)
    if os.environ.get("ANABRANCH_TRACEBACK"):
        traceback.print_exception(error)
    print("anabranch: " + " ".join(message_of(error).split()), file=sys.stderr)
    return exit_status.of_error(error)


def report_some(errors: Iterable[BaseException]) -> int:
    """Print each error of a command that failed in part. Returns the exit status."""
    return max(map(report_error, errors), default=exit_status.DONE)


def failures(refused: Mapping[str, KafkaError]) -> dict[str, dict[str, str]]:
    """The errors by name, for JSON."""
    return {name: {"error": error.code.name, "message": error.message} for name, error in refused.items()}


def report_deleted(names: Iterable[str], refused: Mapping[str, KafkaError], *, as_json: bool) -> int:
    """Print the deleted names, and the errors of the other names. Returns the exit status."""
    deleted = [name for name in names if name not in refused]
    if as_json:
        print_json({"deleted": deleted, "failed": failures(refused)})
    elif deleted:
        print(f"deleted {', '.join(deleted)}")
    return report_some(refused.values())


def message_of(error: BaseException) -> str:
    """The error as text for a user."""
    if isinstance(error, CommandError | ConfigError | ZookeeperUnavailableError | InputError):
        return str(error)
    if isinstance(error, KafkaError):
        return f"{error.code.name}: {error.message}"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    return f"{type(error).__name__}: {error} (ANABRANCH_TRACEBACK=1 shows where)"


def _single_cause(error: BaseException) -> BaseException:
    """Return the single error inside nested exception groups; a group of several errors is returned as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
