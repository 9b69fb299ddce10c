"""Every async test of the client runs under both event loops, unless it is marked for trio alone."""

from __future__ import annotations

import inspect

import anyio
import pytest

_LOOP = "event_loop"
_TEST_DEADLINE_S = 20.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function) and not metafunc.definition.get_closest_marker("trio"):
        metafunc.fixturenames.append(_LOOP)
        metafunc.parametrize(_LOOP, ["asyncio", "trio"])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test to its end, with a deadline."""
    loop = pyfuncitem.callspec.params.get(_LOOP) if hasattr(pyfuncitem, "callspec") else None
    if loop is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def with_deadline() -> None:
        with anyio.fail_after(_TEST_DEADLINE_S):
            await pyfuncitem.obj(**arguments)

    anyio.run(with_deadline, backend=loop)
    return True
