"""Configs that change while the controller runs."""

from __future__ import annotations

from controller.context import Context
from controller.events import ConfigsChanged
from controller.partitions import elect_offline
from zk_schemas import paths


async def on_configs_changed(context: Context) -> None:
    """Partitions without a leader may get one where unclean elections were allowed just now.

    Which config changed does not matter: only those of topics that wait for a leader are read.
    """
    await context.store.children(paths.CONFIG_CHANGES, context.events.watch(ConfigsChanged()))
    await elect_offline(context)
