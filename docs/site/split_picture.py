"""Draws pictures of a split and a merge, with keys in their true partitions: ``python docs/site/split_picture.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anabranch.protocol.key_placement import place, positive_hash

DOCS = Path(__file__).resolve().parents[1]
INITIAL = 2
KEYS = ("ada", "bo", "cy", "kim", "mia", "ned")
PICTURES = {"split.svg": (2, 3), "split-and-merge.svg": (2, 3, 2)}
"""The partition counts over time, by the picture's file."""
LEFT, BOX, GAP, LANE, TOP = 20, 180, 100, 74, 48
STYLE = """
svg { font-family: system-ui, sans-serif; }
.card { fill: #f4f6f8; } text { fill: #1b1f24; font-size: 15px; } .soft { fill: #57606a; font-size: 13px; }
.box { fill: #fff; stroke: #0b7a75; stroke-width: 1.5; } .key { fill: #d7efed; } .moved { fill: #ffe3b0; }
.stay, .split, .merge { fill: none; stroke: #0b7a75; stroke-width: 3; } .merge { stroke-dasharray: 7 5; }
.tip { fill: #0b7a75; }
@media (prefers-color-scheme: dark) {
.card { fill: #182029; } text { fill: #e6edf3; } .soft { fill: #a5afba; }
.box { fill: #0f1419; stroke: #4fd1c5; } .key { fill: #14494a; } .moved { fill: #6b4a12; }
.stay, .split, .merge { stroke: #4fd1c5; } .tip { fill: #4fd1c5; }
}"""


def keys_in(partition: int, count: int) -> list[str]:
    return [key for key in KEYS if place(positive_hash(key.encode()), INITIAL, count) == partition]


def draw(counts: Sequence[int]) -> str:
    """The picture of a topic that has these partition counts one after the other."""
    width = 2 * LEFT + len(counts) * BOX + (len(counts) - 1) * GAP
    height = TOP + max(counts) * LANE + (34 if len(counts) > 2 else 52)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-labelledby="title">',
        f'<title id="title">{_title(counts)}</title><style>{STYLE}</style>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="card" width="{width}" height="{height}" rx="10"/>',
    ]
    for stage, count in enumerate(counts):
        x = LEFT + stage * (BOX + GAP)
        parts.append(f'<text x="{x}" y="30" font-weight="600">{count} partitions</text>')
        before = counts[stage - 1] if stage else count
        parts += [part for p in range(count) for part in _box(x, p, count, before)]
        if stage:
            parts += _moves(x, before, count)
    below = "Time goes to the right. A group gets the older records of a moved key (orange) before its newer ones."
    middle = below.index(" of a moved") if len(counts) < 3 else len(below)  # a narrow picture has two lines
    for line, text in enumerate(text for text in (below[:middle], below[middle:].strip()) if text):
        y = height - 14 - 18 * (middle < len(below)) + 18 * line
        parts.append(f'<text class="soft" x="{LEFT}" y="{y}">{text}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _title(counts: Sequence[int]) -> str:
    stages = "; ".join(
        f"{count} partitions: " + ", ".join(f"{p} has {' and '.join(keys_in(p, count))}" for p in range(count))
        for count in counts
    )
    return f"Keys move with a split{' and a merge' if len(counts) > 2 else ''}. {stages}"


def _box(x: int, partition: int, count: int, before: int) -> list[str]:
    y = TOP + partition * LANE
    parts = [
        f'<rect class="box" x="{x}" y="{y}" width="{BOX}" height="54" rx="6"/>',
        f'<text class="soft" x="{x + 10}" y="{y + 18}">partition {partition}</text>',
    ]
    at = x + 8
    for key in keys_in(partition, count):
        kind = "key" if key in keys_in(partition, before) else "moved"
        wide = 16 + 8 * len(key)
        parts.append(f'<rect class="{kind}" x="{at}" y="{y + 25}" width="{wide}" height="22" rx="11"/>')
        parts.append(f'<text x="{at + wide / 2:g}" y="{y + 41}" text-anchor="middle">{key}</text>')
        at += wide + 6
    return parts


def _moves(x: int, before: int, count: int) -> list[str]:
    """The lines from the stage before to the stage at x: each says from which partition keys come."""
    start, end = x - GAP + 4, x - 6
    parts = []
    for source in range(before):
        for target in range(count):
            if set(keys_in(source, before)) & set(keys_in(target, count)):
                kind = "stay" if source == target else "split" if count > before else "merge"
                y, to = (TOP + p * LANE + 27 for p in (source, target))
                to += {"split": -10, "merge": 10, "stay": 0}[kind]
                curve = f"M{start} {y}C{start + 60} {y} {end - 60} {to} {end} {to}"
                parts.append(f'<path class="{kind}" d="{curve}" marker-end="url(#tip)"/>')
    word = "split" if count > before else "merge"
    parts.append(f'<text class="soft" x="{(start + end) / 2:g}" y="30" text-anchor="middle">{word}</text>')
    return parts


if __name__ == "__main__":
    for name, counts in PICTURES.items():
        (DOCS / name).write_text(draw(counts))
