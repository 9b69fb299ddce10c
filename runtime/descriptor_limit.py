"""RLIMIT_NOFILE: the number of files and connections that a process may have open at a time."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import NamedTuple

Limits = tuple[int, int]
_FALLBACKS = (1 << 20, 10_240)
"""Soft limits to try when the kernel refuses the hard limit: macOS has no hard limit and allows 10,240."""


class DescriptorLimit(NamedTuple):
    """The soft limit, the hard limit, and the soft limit before the raise."""

    soft: int
    hard: int
    before: int

    @property
    def allows(self) -> str:
        """Text for the log: the files and connections that may be open at the same time."""
        return f"{self.soft} log segments in use, connections and other files together"


def raise_descriptor_limit(
    get: Callable[[], Limits] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    put: Callable[[Limits], None] = lambda limits: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
) -> DescriptorLimit:
    """Raise the soft limit as far as the system allows. The limit does not change when the system refuses."""
    soft, hard = get()
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited:
        return DescriptorLimit(soft, hard, soft)
    for wanted in (hard, *_FALLBACKS):
        if (hard != unlimited and wanted > hard) or (wanted != unlimited and wanted <= soft):
            continue
        try:
            put((wanted, hard))
        except (OSError, ValueError):
            continue
        return DescriptorLimit(wanted, hard, soft)
    return DescriptorLimit(soft, hard, soft)
