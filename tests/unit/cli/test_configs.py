"""``anabranch configs``: its error for an id that is not a broker's, and a topic without a config."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch import ErrorCode, KafkaError
from anabranch.cli import admin as cli_admin
from anabranch.cli.main import main
from anabranch.client.admin.types import ConfigEntry, ConfigSource
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


class WithDefaults(FakeAdmin):
    async def describe_configs(self, **_: Any) -> Any:
        return {"t": {"retention.ms": ConfigEntry("retention.ms", "1", ConfigSource.DEFAULT_CONFIG, False, False)}}


def test_a_topic_without_a_config_says_so_and_all_shows_the_defaults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_admin, "Admin", WithDefaults())
    for more, shown in (
        ([], "no config is set for topic t; --all shows 1 default\n"),
        (["--all"], "key           value  source\nretention.ms  1      DEFAULT_CONFIG\n"),
        (["--json"], "[]\n"),
    ):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["configs", "describe", "topic", "t", *more])
        assert capsys.readouterr().out == shown
