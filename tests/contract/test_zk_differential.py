"""The same random calls to a real ZooKeeper and to the simulated one have the same outcomes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anabranch.runtime.env import CheckOp, CreateOp, DeleteOp, SetOp, ZkError, ZkOp, ZkStore
from anabranch.runtime.zk_kazoo import open_zk
from sim.zk import FakeZk
from tests.contract.zookeepers import SESSION_TIMEOUT_MS

PATHS = ["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep", "/c/d/e"]
CALLS_PER_SEED = 150


def random_op(rng: random.Random) -> ZkOp:
    path, version = rng.choice(PATHS), rng.choice([-1, -1, 0, 1, 2])
    match rng.randrange(4):
        case 0:
            return CreateOp(path, rng.randbytes(3), ephemeral=rng.random() < 0.2)
        case 1:
            return SetOp(path, rng.randbytes(3), version)
        case 2:
            return DeleteOp(path, version)
        case _:
            return CheckOp(path, max(0, version))


def random_call(rng: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return a method's name, its arguments and its keywords."""
    path = rng.choice(PATHS)
    match rng.randrange(8):
        case 0:
            return "create", (path, b"one"), {"make_parents": rng.random() < 0.5, "ephemeral": rng.random() < 0.2}
        case 1:
            return "create", (path + "/n_", b""), {"sequence": True}
        case 2:
            return "set", (path, rng.randbytes(2), rng.choice([-1, 0, 1])), {}
        case 3:
            return "delete", (path, rng.choice([-1, 0, 1])), {}
        case 4:
            return "get", (path,), {}
        case 5:
            return "children", (rng.choice([path, "/"]),), {}
        case 6:
            return "exists", (path,), {}
        case _:
            return "multi", ([random_op(rng) for _ in range(rng.randint(1, 4))],), {}


async def outcome(zk: ZkStore, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    try:
        result = await getattr(zk, name)(*arguments, **keywords)
    except ZkError as error:
        return type(error).__name__, error.path
    if name in ("get", "exists") and result is not None:
        return result.data, result.version, result.ephemeral_owner != 0, result.czxid == result.mzxid
    return result


@pytest.mark.trio
@pytest.mark.parametrize("seed", range(8))
async def test_a_real_and_a_simulated_zookeeper_give_the_same_outcomes(zookeeper_root: str, seed: int) -> None:
    rng = random.Random(seed)
    fake = FakeZk().session()
    async with open_zk(zookeeper_root, SESSION_TIMEOUT_MS) as real:
        for number in range(CALLS_PER_SEED):
            call = random_call(rng)
            expected, simulated = await outcome(real, *call), await outcome(fake, *call)
            assert simulated == expected, f"seed {seed}, call {number}: {call}"
