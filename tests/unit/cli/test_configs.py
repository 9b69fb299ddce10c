"""``anabranch configs``: its error for an id that is not a broker's."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError
from anabranch.cli import admin as cli_admin
from anabranch.cli.main import main
from tests.unit.cli.fake_admin import FakeAdmin


class WithoutBroker(FakeAdmin):
    async def describe_loggers(self, broker: int) -> Any:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker}")

    async def alter_loggers(self, broker: int, levels: Any) -> None:
        await self.describe_loggers(broker)


@pytest.mark.parametrize(
    "arguments", [("describe", "loggers", "1000"), ("alter", "loggers", "1000", "--set", "a=INFO")]
)
def test_the_error_for_an_unknown_broker_names_the_option_for_controllers(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_admin, "Admin", WithoutBroker())
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["configs", *arguments])
    wanted = "anabranch: there is no broker 1000; if it is a controller, give --bootstrap-controller HOST:PORT, "
    assert capsys.readouterr().err.startswith(wanted)
