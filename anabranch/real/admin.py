"""``anabranch.Admin``."""

from __future__ import annotations

from typing import Unpack

from anabranch.client.admin import admin
from anabranch.client.arguments import constructing
from anabranch.client.config import AdminConfig, documented
from anabranch.client.options import AdminOptions
from anabranch.real.bootstrap import with_bootstrap
from anabranch.runtime.env import Env
from anabranch.runtime.real_anyio import client_env


@documented(AdminConfig)
class Admin(admin.Admin):
    """Describes and changes topics, configs, groups and logs; the keyword arguments are Kafka's admin client keys.

    Every call raises ``KafkaError`` with the broker's code and message for the first refused item. Retriable errors are
    retried for ``default_api_timeout_ms``.
    """

    @constructing
    def __init__(self, *, env: Env | None = None, **config: Unpack[AdminOptions]) -> None:
        super().__init__(env=env or client_env(), **with_bootstrap(config))
