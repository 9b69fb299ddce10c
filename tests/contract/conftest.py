"""Both worlds, side by side: each fixture here is parametrised over the real one and the simulated one."""

from __future__ import annotations

from tests.contract.zookeepers import zookeeper_root, zookeeper_server

__all__ = ["zookeeper_root", "zookeeper_server"]
