"""Generator of the recording in README: ``python -m tests.tui.recording`` writes ``screenshots/tour.cast`` and
``.gif``.

The app runs in a real pseudo-terminal with a real local pool: launch, watch, all ranks, the receipt. The cast is in
asciinema's format (v2); the GIF is for browsers. Requires the ``test`` extra.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyte
import resvg_py
from PIL import Image

from tests.support.terminal import Terminal
from tests.tui.screenshots import EXAMPLES, FOLDER, FONT

SIZE = (100, 30)
BACK, FORE = "0f151b", "d8dee6"
WIDE, HIGH = 7, 15  # points of a cell
EVERY = 0.25  # seconds between two pictures of the GIF
CAST_EVERY = 0.1  # the same of the cast
COLOURS = 24


class Recorder(Terminal):
    """Terminal that records its output with times."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.begun = time.monotonic()
        self.painted: list[tuple[float, str]] = []
        super().__init__(home, SIZE, cwd)

    def _feed(self, data: bytes) -> None:
        self.painted.append((time.monotonic() - self.begun, data.decode("utf-8", "replace")))
        super()._feed(data)

    def rest(self, seconds: float) -> None:
        """Continue to read for a number of seconds, like a user."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.read(0.05):
            pass

    def type(self, text: str) -> None:
        for letter in text:
            self.press(letter)
            self.rest(0.07)


def record(folder: Path) -> list[tuple[float, str]]:
    """Record the tour by keys."""
    terminal = Recorder(folder / "home", folder)
    try:
        terminal.until("No pools yet")
        terminal.rest(1)
        terminal.press("n", until="pools › launch")
        terminal.rest(0.8)
        terminal.type("ddp.py")
        for _ in range(3):
            terminal.press("tab")
            terminal.rest(0.2)
        terminal.type("epochs=15")
        terminal.until("train(epochs=15)")
        terminal.rest(1.5)
        terminal.press("ctrl+r", until="epoch 2/15")
        terminal.press("a", until="✓ DONE 4/4")
        terminal.rest(3)
        terminal.press("X", until="Cancel")
        terminal.rest(1.5)
        terminal.press("tab")
        terminal.rest(0.5)
        terminal.press("enter", until="verified gone 4")
        terminal.rest(3)
        return list(terminal.painted)
    finally:
        terminal.close()


def look_of(line: Any, column: int) -> Any:
    """Return the style of a cell without its text."""
    return line[column]._replace(data="")


def redrawn(painted: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the same recording in a fifth of the bytes: for each frame only the changed cells."""
    screen = pyte.Screen(*SIZE)
    stream = pyte.Stream(screen)
    blank = screen.default_char
    shown = [[blank] * SIZE[0] for _ in range(SIZE[1])]
    parts = [(painted[0][0], "\x1b[?25l\x1b[2J")]

    def tell(at: float) -> None:
        text = "".join(_changes(screen, shown))
        if text:
            parts.append((at, text))

    beat = painted[0][0] + CAST_EVERY
    for at, text in painted:
        if at > beat:
            tell(beat)
            beat = at + CAST_EVERY - (at - beat) % CAST_EVERY
        stream.feed(text)
    tell(painted[-1][0])
    return parts


def _changes(screen: pyte.Screen, shown: list[list[Any]]) -> Iterator[str]:
    """Return the output that changes one screen into another. ``shown`` is updated."""
    style = ""
    for row, before in enumerate(shown):
        line = screen.buffer[row]
        changed = [column for column in range(SIZE[0]) if line[column] != before[column]]
        at = -1
        for column in changed:
            cell = line[column]
            before[column] = cell
            if not cell.data:  # the second half of a wide one
                continue
            if column != at:
                yield f"\x1b[{row + 1};{column + 1}H"
            if (cell_style := _sgr(cell)) != style:
                style = cell_style
                yield cell_style
            yield cell.data
            at = column + 1


def _sgr(cell: Any) -> str:
    codes = ["0", *(code for code, on in (("1", cell.bold), ("3", cell.italics), ("4", cell.underscore),
                                          ("7", cell.reverse)) if on)]  # fmt: skip
    for plane, name in (("38", cell.fg), ("48", cell.bg)):
        if (hexes := colour(name, "")) and plane:
            codes.append(f"{plane};2;" + ";".join(str(int(hexes[at : at + 2], 16)) for at in (0, 2, 4)))
    return f"\x1b[{';'.join(codes)}m"


def picture(screen: pyte.Screen) -> Image.Image:
    """Return the screen as a picture."""
    wide, high = SIZE[0] * WIDE, SIZE[1] * HIGH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}">'
        f'<rect width="{wide}" height="{high}" fill="#{BACK}"/><g font-size="11.6" xml:space="preserve">'
    ]
    for row in range(SIZE[1]):
        line, at = screen.buffer[row], 0
        for look, cells in groupby(range(SIZE[0]), partial(look_of, line)):
            columns = list(cells)
            text = "".join(line[column].data for column in columns)
            fore, back = colour(look.fg, FORE), colour(look.bg, BACK)
            if look.reverse:
                fore, back = back, fore
            x, y, length = at * WIDE, row * HIGH, len(columns) * WIDE
            if back != BACK:
                parts.append(f'<rect x="{x}" y="{y}" width="{length}" height="{HIGH}" fill="#{back}"/>')
            if text.strip():
                weight = ' font-weight="bold"' if look.bold else ""
                parts.append(f'<text x="{x}" y="{y + 12}" fill="#{fore}"{weight}>{escape(text)}</text>')
            at += len(columns)
    parts.append("</g></svg>")
    png = resvg_py.svg_to_bytes(svg_string="".join(parts), monospace_family=FONT, font_family=FONT)
    return Image.open(io.BytesIO(bytes(png))).convert("RGB")


def colour(name: str, usual: str) -> str:
    return name if len(name) == 6 and set(name) <= set("0123456789abcdef") else usual


def frames(painted: list[tuple[float, str]]) -> list[Image.Image]:
    """Return one picture for each frame."""
    screen = pyte.Screen(*SIZE)
    stream = pyte.Stream(screen)
    made, beat = [], painted[0][0] + EVERY
    for at, text in painted:
        while at > beat:
            made.append(picture(screen))
            beat += EVERY
        stream.feed(text)
    return [*made, picture(screen)]


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="skyward-tour-"))
    try:
        shutil.copy(EXAMPLES / "ddp.py", folder)
        (folder / "home").mkdir(mode=0o700)
        painted = record(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    head = {"version": 2, "width": SIZE[0], "height": SIZE[1], "env": {"TERM": "xterm-256color"}}
    entries = [[round(at, 2), "o", text] for at, text in redrawn(painted)]
    lines = [json.dumps(head), *(json.dumps(each, ensure_ascii=False) for each in entries)]
    (FOLDER / "tour.cast").write_text("\n".join(lines) + "\n", "utf-8")
    shown = frames(painted)
    palette = shown[len(shown) // 2].quantize(COLOURS)
    first, *others = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in shown]
    milliseconds = int(EVERY * 1000)
    first.save(FOLDER / "tour.gif", save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True)


if __name__ == "__main__":
    main()
