"""RLIMIT_NOFILE at the start of a server: the soft limit is raised to the hard limit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import structlog

from anabranch.broker.__main__ import main as broker_main
from anabranch.controller.__main__ import main as controller_main
from anabranch.runtime import garbage_collection, server_program
from anabranch.runtime.descriptor_limit import DescriptorLimit, Limits, raise_descriptor_limit
from anabranch.runtime.env import ZkConnectionError
from anabranch.runtime.zk_kazoo import KazooZk

UNLIMITED = resource.RLIM_INFINITY


class Kernel:
    """Refuses a soft limit above ``most``, including an unlimited one. With ``most`` None, refuses nothing."""

    def __init__(self, soft: int, hard: int, most: int | None = None) -> None:
        self.limits = soft, hard
        self.most = most

    def get(self) -> Limits:
        return self.limits

    def put(self, limits: Limits) -> None:
        soft, _ = limits
        if self.most is not None and (soft == UNLIMITED or soft > self.most):
            raise ValueError("current limit exceeds maximum limit")
        self.limits = limits


@pytest.mark.parametrize(
    ("kernel", "soft"),
    [
        (Kernel(1024, 524_288), 524_288),
        (Kernel(4096, 4096), 4096),
        (Kernel(1024, UNLIMITED), UNLIMITED),
        (Kernel(UNLIMITED, UNLIMITED), UNLIMITED),
        (Kernel(256, UNLIMITED, most=10_240), 10_240),
        (Kernel(1024, UNLIMITED, most=1 << 20), 1 << 20),
        (Kernel(1024, 524_288, most=20_000), 10_240),
        (Kernel(1024, 524_288, most=1024), 1024),
        (Kernel(1024, 4096, most=2048), 1024),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_the_kernel_allows(kernel: Kernel, soft: int) -> None:
    before, hard = kernel.limits
    assert raise_descriptor_limit(kernel.get, kernel.put) == DescriptorLimit(soft, hard, before)
    assert kernel.limits == (soft, hard)


def test_a_process_raises_its_soft_limit_to_the_hard_limit() -> None:
    program = (
        "import resource; from anabranch.runtime.descriptor_limit import raise_descriptor_limit as rise;"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard));"
        "assert rise() == (hard, hard, 64); assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize(
    ("main", "settings"),
    [
        (broker_main, ["--set", "broker.id=1"]),
        (controller_main, ["--set", "controller.id=1000"]),
    ],
    ids=["broker", "controller"],
)
def test_a_server_raises_the_limit_and_begins_short_collections_first(
    monkeypatch: pytest.MonkeyPatch, main: Callable[[list[str]], int], settings: list[str]
) -> None:
    order: list[str] = []

    def rise() -> DescriptorLimit:
        order.append("raised")
        return DescriptorLimit(4096, 4096, 1024)

    @asynccontextmanager
    async def open_zk(*_: object, **_keys: object) -> AsyncIterator[KazooZk]:
        order.append("connecting")
        raise ZkConnectionError("nowhere:1: no ZooKeeper server answered")
        yield

    monkeypatch.setattr(garbage_collection.OF_THIS_PROCESS, "begin", lambda: order.append("short collections"))
    monkeypatch.setattr(server_program, "raise_descriptor_limit", rise)
    monkeypatch.setattr(server_program, "open_zk", open_zk)
    try:
        assert main([*settings, "--set", "zookeeper.connect=nowhere:1"]) == 1
    finally:
        structlog.reset_defaults()
    assert order == ["short collections", "raised", "connecting"]
