"""The token of a waiting request in the coordinator's decisions."""

from __future__ import annotations

from typing import TypeAlias

Token: TypeAlias = object
"""Stands for a request that waits for its answer; only ``LoadedPartition`` knows the token's type."""
