"""The statuses with which commands end, and the status of each error. ``main`` ends the process with them.

Servers and the console end with ``DONE`` after Ctrl-C or SIGTERM. A server whose event loop hangs ends with the status
of ``runtime.watchdog``. The layers below the command line have the same numbers: ``runtime.server_program``,
``runtime.interrupts``, ``health`` and ``audit.report``.
"""

from __future__ import annotations

from typing import Final

from anabranch.command_error import UsageError
from anabranch.zk_schemas.config_def import ConfigError

DONE: Final = 0
FAILED: Final = 1
"""The command failed, also if it failed only in part, or a check found a fault."""
WRONG_USAGE: Final = 2
"""The arguments or the configuration are not valid, or there is nothing that could be checked."""
INTERRUPTED: Final = 130
"""Ctrl-C: ``after_signal`` of SIGINT."""
NO_READER: Final = 141
"""The reader of standard output has ended (``| head``): ``after_signal`` of SIGPIPE."""


def after_signal(number: int) -> int:
    """The status after a signal, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + number


def of_error(error: BaseException) -> int:
    """The status of a command that an error ends."""
    return WRONG_USAGE if isinstance(error, UsageError | ConfigError) else FAILED
