"""The audit's report as one HTML page that needs no network and no script. Pure: report and manifests in, text out.

Keys, names and messages come from the audited files and may have any character. The templates escape each value.
``shown`` makes invisible characters visible, such as those that change the reading direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from anabranch.audit.history import DEFAULT_LIMITS, ORDER_CHECK, LayoutChange, PageLimits, TopicHistory, topic_history
from anabranch.audit.manifest import Manifest
from anabranch.audit.report import AuditReport, Check, Status, Violation
from anabranch.protocol.plurals import counted, one_or_many

KEY_CHARACTERS = 80
FIRST_SCREEN = 3
"""How many violations the top of the page names."""
MOST_STEPS = 8
"""Lists of partition counts, and of a key's partitions, are cut to this length."""
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_STRIP_HEIGHT, _LANE_WIDTH = 40, 10
WIDE_TREE = 12
"""A tree with more lanes than this has no room for numbers on a phone."""


class ShownVerdict(NamedTuple):
    """The verdict on the first screen. ``tone`` is "ok", "bad" or "unknown"."""

    tone: str
    title: str
    text: str
    first: list[tuple[Check, Violation]]


def render_page(report: AuditReport, manifests: Sequence[Manifest], limits: PageLimits = DEFAULT_LIMITS) -> str:
    """The page's text. Topics beyond ``limits.rows`` are only named, in a sentence."""
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            report=report,
            verdict=verdict(report),
            topics=[topic_history(manifest, report, limits) for manifest in manifests[: limits.rows]],
            further_topics=max(0, len(manifests) - limits.rows),
            unknown=[check for check in report.checks if check.unknown is not None],
            violated=_violated(report),
        )
    )


def _violated(report: AuditReport) -> list[Check]:
    return [check for check in report.checks if check.status is Status.VIOLATED]


def verdict(report: AuditReport) -> ShownVerdict:
    """The verdict on the order: whether it is kept, and if not, where it is broken."""
    violated = _violated(report)
    order = next((check for check in report.checks if check.name == ORDER_CHECK), None)
    first = [(check, violation) for check in violated for violation in check.violations]
    first.sort(key=lambda found: found[0] is not order)
    tone = "bad" if violated else "unknown"
    if order is not None and order.status is Status.VIOLATED:
        title = f"Keys are out of order at {counted(order.violation_count, 'place', form=',')}"
    elif violated:
        names = ", ".join(check.name for check in violated)
        title = f"{counted(len(violated), 'check', form=',')} found violations: {names}"
    elif order is None or order.status is Status.UNKNOWN:
        title = "No violation, but the order of keys was not decided"
    else:
        title, tone = "Every key is in order", "ok"
    return ShownVerdict(tone, title, _explain(order, violated), first[:FIRST_SCREEN])


def _explain(order: Check | None, violated: Sequence[Check]) -> str:
    if order is None or order.counted == 0:
        return "The order of keys was not checked."
    have = one_or_many(order.counted, "has", "have")
    looked_at = f"{counted(order.counted, 'record', form=',')} {have} an order value"
    if order.status is Status.VIOLATED:
        others = [check.name for check in violated if check is not order]
        return f"{looked_at}. {'Other checks with violations: ' + ', '.join(others) + '.' if others else ''}"
    of_readable = "of those that can be read, " if violated else ""
    kept = "none has a lower one than the previous record of its key, over all splits and merges"
    return f"{looked_at}; {of_readable}{kept}."


# ---------------------------------------------------------------- filters


def shown(value: str | bytes, most: int | None = None) -> str:
    """A value as readable text: invisible characters and invalid UTF-8 as escapes; a long value is cut."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    left_out = len(text) - most if most is not None else 0
    visible = "".join(c if c.isprintable() else _escape(c) for c in text[:most])
    return f"{visible}… ({left_out:,} more characters)" if left_out > 0 else visible


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode() if ord(character) < 0xD800 else f"\\u{ord(character):04x}"


def key_text(key: bytes) -> str:
    return shown(key, KEY_CHARACTERS) if key else "(empty)"


def size_text(size_bytes: int) -> str:
    """A size in the largest unit that gives at least 1."""
    size, unit = float(size_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    text = str(size_bytes) if unit == 0 else f"{size:.0f}" if size >= 100 else f"{size:.3g}"
    return f"{text}\u00a0{_UNITS[unit]}"


def compact(number: int) -> str:
    """A number in about four characters: 950, 1.2k, 34k, 1.2M."""
    size, unit = float(number), 0
    while size >= 999.5 and unit < 4:
        size, unit = size / 1000, unit + 1
    return str(number) if unit == 0 else f"{size:.1f}".removesuffix(".0")[:4].rstrip(".") + "kMGT"[unit - 1]


def time_text(timestamp_ms: int | None) -> str:
    """A record's time in UTC, to the millisecond; the number itself when it is outside the calendar."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "without a time"
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def counts_text(topic: TopicHistory) -> str:
    """The topic's partition counts in turn."""
    counts = ["…"] if topic.further_stages else []
    return route([*counts, *(f"{stage.undeleted_partition_count:,}" for stage in topic.stages)])


def route(steps: Sequence[int | str]) -> str:
    """The steps in turn. If there are many, only the first and the last steps are shown."""
    if len(steps) > MOST_STEPS:
        steps = [steps[0], "…", *steps[-MOST_STEPS + 2 :]]
    return " → ".join(map(str, steps))


def sentences(change: LayoutChange) -> list[str]:
    """Sentences that describe a resize."""
    version = change.after.layout_version
    if change.kind == "other":
        found = ["It is not known which keys moved, because the counts of these layouts do not show it."]
    else:
        found = [f"{counted(change.move_count, change.kind, form=',')}."]
    first = change.after.total.first_timestamp
    found.append(f"The first record after it: {time_text(first)}." if first is not None else "No record follows.")
    if change.outcome == "broken":
        are = "is" if change.order_violations == 1 else "are"
        found.append(
            f"{counted(change.order_violations, 'record', form=',')} under layout {version} {are} out of order."
        )
    elif change.outcome == "unnamed":
        found.append(f"Not all records out of order are named; none of those named is under layout {version}.")
    elif change.outcome == "undecided":
        found.append("Whether keys kept their order was not checked for all records.")
    if change.skipped_layouts:
        found.append(f"No file mentions {counted(change.skipped_layouts, 'layout', form=',')} in between.")
    return found


class Line(NamedTuple):
    """A line of the tree between two layouts: an SVG path and its meaning."""

    path: str
    kind: str


def lines(change: LayoutChange) -> list[Line]:
    """The lines of a resize: from each lane to itself where partitions stay, and from source to target of moves."""
    found = []
    for lane, (cell, later) in enumerate(zip(change.before.cells, change.after.cells, strict=True)):
        x = _middle(lane)
        if cell.in_use and later.in_use:
            found.append(Line(f"M{x} 0V{_STRIP_HEIGHT}", "stays"))
    for edge in change.edges:
        if edge.source != edge.target:
            x, to = _middle(edge.source), _middle(edge.target)
            half = _STRIP_HEIGHT // 2
            found.append(Line(f"M{x} 0C{x} {half} {to} {half} {to} {_STRIP_HEIGHT}", change.kind))
    return found


def _middle(lane: int) -> int:
    return lane * _LANE_WIDTH + _LANE_WIDTH // 2


def strip_box(change: LayoutChange) -> str:
    return f"0 0 {len(change.after.cells) * _LANE_WIDTH} {_STRIP_HEIGHT}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("audit", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "key": key_text,
        "size": size_text,
        "compact": compact,
        "time": time_text,
        "count": partial(counted, form=","),
        "n": "{:,}".format,
        "counts": counts_text,
        "route": route,
        "sentences": sentences,
        "lines": lines,
        "box": strip_box,
    }
    environment.globals |= {"WIDE_TREE": WIDE_TREE}
    return environment
