"""The blocking admin client."""

from __future__ import annotations

from anabranch.blocking.client import BlockingClient
from anabranch.client.config import AdminConfig, documented
from anabranch.real.admin import Admin as AsyncAdmin


@documented(AdminConfig)
class Admin(BlockingClient[AsyncAdmin]):
    """A blocking ``anabranch.Admin``. Many threads may share it."""

    _factory = AsyncAdmin
