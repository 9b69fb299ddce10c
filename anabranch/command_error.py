"""The errors that end a command, or a function it calls, with a sentence for the user."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot continue; the message is one line that says how to fix it."""


class UsageError(CommandError):
    """The arguments of a command contradict each other or are invalid."""
