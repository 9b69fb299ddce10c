"""What ends a command, or a function behind one, with a sentence for its user."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot go on; the message is one line that says what to do about it."""

    exit_status = 1


class UsageError(CommandError):
    """What a command was asked for makes no sense."""

    exit_status = 2
