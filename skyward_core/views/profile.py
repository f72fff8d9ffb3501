"""What py-spy has seen of a rank: its hottest lines, and files for other programs. Pure functions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from ..model.stacks import StackFrame
from ..wire.safe_text import field
from .stacks import frame_line, own_frames

_FRAME = re.compile(r"(.*) \((.*):(\d+)\)")
WIDTH, ROW, LEAST = 1200, 17, 0.5  # of the flame graph, in pixels
COLORS = ("#e4572e", "#f0a202", "#f18805", "#d95d39", "#e08e45", "#c8553d")


class HotLine(NamedTuple):
    """A line of code.

    Attributes:
        own: how often it was what ran.
        total: how often it, or what it called, was.
    """

    frame: StackFrame
    own: int
    total: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What was seen.

    Attributes:
        stacks: each with how often it was seen; the innermost frame first, without our own at the end.
    """

    stacks: tuple[tuple[tuple[StackFrame, ...], int], ...]

    @property
    def samples(self) -> int:
        return sum(count for _, count in self.stacks)


def parsed(raw: str) -> Profile:
    """Of what py-spy writes raw; lines that are none of it are passed over."""
    found: Counter[tuple[StackFrame, ...]] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if not (count.isascii() and count.isdecimal() and len(count) < 10 and stack):
            continue
        frames = own_frames([_frame(each) for each in reversed(stack.split(";"))])
        if frames:
            found[frames] += int(count)
    return Profile(tuple(found.most_common()))


def _frame(text: str) -> StackFrame:
    known = _FRAME.fullmatch(text)
    if known is None or len(known[3]) > 9:
        return StackFrame(text, "", 0)
    return StackFrame(known[1], known[2], int(known[3]))


def hottest(profile: Profile, most: int = 20) -> list[HotLine]:
    """The lines that took most, by what ran in them itself."""
    own: Counter[StackFrame] = Counter()
    total: Counter[StackFrame] = Counter()
    for frames, count in profile.stacks:
        own[frames[0]] += count
        for frame in set(frames):
            total[frame] += count
    lines = [HotLine(frame, own[frame], total[frame]) for frame in total]
    return sorted(lines, key=lambda line: (-line.own, -line.total, line.frame))[:most]


def table(profile: Profile, most: int = 20) -> list[tuple[str, str, str]]:
    """The same as rows of text: share of the time in it, share with what it called, and where it is."""
    whole = max(1, profile.samples)
    rows = [("itself", "with calls", "line")]
    rows += [
        (f"{line.own / whole:.1%}", f"{line.total / whole:.1%}", frame_line(line.frame))
        for line in hottest(profile, most)
    ]
    return rows


def speedscope(profile: Profile, name: str) -> str:
    """A file for https://www.speedscope.app."""
    places: dict[StackFrame, int] = {}
    samples = [
        [places.setdefault(frame, len(places)) for frame in reversed(frames)] for frames, _ in profile.stacks
    ]
    weights = [count for _, count in profile.stacks]
    made: dict[str, Any] = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "skyward",
        "shared": {
            "frames": [
                {"name": field(each.function), "file": field(each.file), "line": each.line} for each in places
            ]
        },
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "none",
                "startValue": 0,
                "endValue": profile.samples,
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(made)


class _Call:
    """A call in the flame graph."""

    __slots__ = ("calls", "count")

    def __init__(self) -> None:
        self.calls: dict[StackFrame, _Call] = {}
        self.count = 0


def flame_graph(profile: Profile, name: str) -> str:
    """A picture (SVG): each call as wide as its share of the time, below it what it called."""
    root = _Call()
    for frames, count in profile.stacks:
        node = root
        node.count += count
        for frame in reversed(frames):
            node = node.calls.setdefault(frame, _Call())
            node.count += count
    scale = WIDTH / max(1, root.count)
    boxes: list[str] = []
    deepest = 0
    waiting: list[tuple[_Call, float, int]] = [(root, 0.0, 1)]
    while waiting:
        node, left, depth = waiting.pop()
        for frame, call in sorted(node.calls.items()):
            width = call.count * scale
            if width >= LEAST:
                deepest = max(deepest, depth)
                boxes.append(_box(frame, left, depth * ROW, width, call.count / max(1, root.count)))
                waiting.append((call, left, depth + 1))
            left += width
    height = (deepest + 2) * ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace" '
        f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="12">{escape(field(name))}: {root.count:,} looks</text>'
    )
    return "\n".join([head, *boxes, "</svg>\n"])


def _box(frame: StackFrame, left: float, top: int, width: float, share: float) -> str:
    text = frame_line(frame)
    shown = text[: int(width / 6.7)]
    color = COLORS[sum(map(ord, frame.function)) % len(COLORS)]
    return (
        f'<g><title>{escape(text)} {share:.1%}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{ROW - 1}" fill="{color}" stroke="#fff" stroke-width="0.5"/>'
        f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(shown) if width > 20 else ""}</text></g>'
    )


def as_json(profile: Profile, most: int = 200) -> dict[str, Sequence[Any] | int]:
    """The hottest lines as an object."""
    lines = [
        {"function": field(each.frame.function), "file": field(each.frame.file), "line": each.frame.line,
         "own": each.own, "total": each.total}
        for each in hottest(profile, most)
    ]  # fmt: skip
    return {"samples": profile.samples, "lines": lines}
