"""``anabranch features``: shows and changes the finalized feature levels (KIP-584)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from anabranch import Admin
from anabranch.cli import feature_changes as plan
from anabranch.cli.admin import with_admin
from anabranch.cli.errors import failures
from anabranch.cli.exit_status import DONE, FAILED
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag
from anabranch.cli.output import print_json
from anabranch.client.admin.types import FeatureMetadata
from anabranch.command_error import CommandError, UsageError
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.zk_schemas.features import SUPPORTED

app = App(name="features", help="Describe, upgrade, downgrade, disable feature levels.")
RELEASE = {name: levels.max_version for name, levels in SUPPORTED.items()}
"""The highest level of each feature that this release has."""

Flag: TypeAlias = Annotated[bool, Parameter(negative=())]
Features: TypeAlias = Annotated[list[str] | None, Parameter(name="--feature", negative=(), consume_multiple=False)]
Chosen: TypeAlias = Callable[[FeatureMetadata], list[plan.LevelChange]]


@app.command
def describe(*, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, json_: JsonFlag = False) -> int:
    """Show the range of levels that a broker supports, and the levels that are finalized, for each feature."""
    return show(bootstrap_server, as_json=json_)


def show(bootstrap_server: str, *, from_controller: bool = False, as_json: bool = False) -> int:
    """Print the features of any broker, or of the broker that metadata names as the controller."""

    async def ask(admin: Admin) -> FeatureMetadata:
        if not from_controller:
            return await admin.describe_features()
        controller = (await admin.describe_cluster()).controller_id
        if controller < 0:
            raise CommandError("no controller is active")
        return await admin.describe_features(broker=controller)

    known = with_admin(bootstrap_server, ask)
    if as_json:
        supported = {name: levels._asdict() for name, levels in known.supported.items()}
        finalized = {name: levels._asdict() for name, levels in known.finalized.items()}
        print_json({"epoch": known.epoch, "supported": supported, "finalized": finalized})
    else:
        print("\n".join(plan.description(known)))
    return 0


@app.command
def upgrade(
    *,
    feature: Features = None,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    dry_run: Flag = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Raise the finalized levels, once every broker runs a release that supports them.

    Parameters
    ----------
    feature
        FEATURE=LEVEL; may be given many times.
    all_
        Each feature, to the highest level of this release.
    dry_run
        Let the cluster check the request; change nothing.
    """
    chosen = _chosen(feature, all_, plan.upgrade_all)
    return apply(bootstrap_server, chosen, "upgrade", dry_run=dry_run, as_json=json_)


@app.command
def downgrade(
    *,
    feature: Features = None,
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    force: Flag = False,
    yes: Flag = False,
    dry_run: Flag = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Lower the finalized levels, before brokers go back to an earlier release.

    Parameters
    ----------
    feature
        FEATURE=LEVEL; may be given many times.
    all_
        Each feature, to the highest level of this release. Features that this release does not have are deleted.
    force
        Allow a downgrade with which resized topics lose something (unsafe downgrade).
    yes
        Do not ask for confirmation.
    dry_run
        Let the cluster check the request; change nothing.
    """
    chosen = _chosen(feature, all_, plan.downgrade_all)
    return apply(bootstrap_server, chosen, "downgrade", force=force, yes=yes, dry_run=dry_run, as_json=json_)


@app.command
def disable(
    *,
    feature: Features = None,
    force: Flag = False,
    yes: Flag = False,
    dry_run: Flag = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Delete the finalized level of a feature.

    Parameters
    ----------
    feature
        Its name; may be given many times.
    force
        Allow a downgrade with which resized topics lose something (unsafe downgrade).
    yes
        Do not ask for confirmation.
    dry_run
        Let the cluster check the request; change nothing.
    """
    names = feature or []
    if not names:
        raise UsageError("name a feature: anabranch features disable --feature FEATURE")
    return apply(
        bootstrap_server,
        lambda known: plan.changes(known, {}, names),
        "downgrade",
        force=force,
        yes=yes,
        dry_run=dry_run,
        as_json=json_,
    )


def apply(
    bootstrap_server: str,
    chosen: Chosen,
    what: str,
    *,
    force: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Request the changes, after confirmation when levels go down. Returns the exit status: 1 if a change failed."""
    known = with_admin(bootstrap_server, lambda admin: admin.describe_features())
    changes = chosen(known)
    if not changes and as_json:
        print_json(plan.as_json([], {}, dry_run=dry_run))
        return 0
    if not changes:
        print(f"There is nothing to {what}.")
        return 0
    if what == "upgrade" and (lower := [change for change in changes if change.is_downgrade]):
        raise UsageError(f"level {lower[0].new} of {lower[0].feature} is a downgrade: use `features downgrade`")
    downgrades = [change for change in changes if change.is_downgrade]
    if what == "downgrade" and (others := [change for change in changes if not change.is_downgrade]):
        if others[0].feature not in {*known.supported, *known.finalized}:
            raise UsageError(f"there is no feature {others[0].feature}: `features describe` lists them")
        raise UsageError(f"level {others[0].new} of {others[0].feature} is no downgrade: use `features upgrade`")
    if downgrades and not dry_run and not yes and not _confirmed(plan.question(downgrades)):
        raise CommandError("not confirmed: nothing was changed")
    kind = UpgradeType.UNSAFE_DOWNGRADE if force else UpgradeType.SAFE_DOWNGRADE

    async def ask(admin: Admin) -> int:
        results = await admin.update_features(plan.updates(changes, kind), validate_only=dry_run)
        if as_json:
            refused = {name: error for name, error in results.items() if error is not None}
            print_json(plan.as_json(changes, failures(refused), dry_run=dry_run))
        for change in [] if as_json else changes:
            print(plan.outcome(change, results.get(change.feature), dry_run=dry_run))
        return FAILED if any(results.values()) else DONE

    return with_admin(bootstrap_server, ask)


def _chosen(features: list[str] | None, every: bool, of_release: Callable[..., list[plan.LevelChange]]) -> Chosen:
    if bool(features) == every:
        raise UsageError("give either --feature FEATURE=LEVEL or --all")
    if every:
        return lambda known: of_release(known, RELEASE)
    levels = plan.parse_levels(features or [], "=")
    return lambda known: plan.changes(known, levels)


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        lowered = "; ".join(question.splitlines()[1:])
        raise UsageError(f"standard input is not a terminal: confirm the downgrade with --yes: {lowered}")
    print(question)
    return input("\n[Y/n]? ").strip().lower() in ("", "y", "yes")
