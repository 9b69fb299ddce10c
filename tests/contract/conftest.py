"""Fixtures that run each contract test against the real and the simulated implementation."""

from __future__ import annotations

from tests.contract.zookeepers import zookeeper_root, zookeeper_server

__all__ = ["zookeeper_root", "zookeeper_server"]
