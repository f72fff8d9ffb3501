"""Effect of bytes on a terminal: a real pseudo-terminal on one side, pyte on the other."""

from __future__ import annotations

import os
import re
import tty
import unicodedata
from collections.abc import Callable
from typing import Any, BinaryIO

import pyte

HARMLESS = {"draw", "select_graphic_rendition", "linefeed", "carriage_return", "tab"}
SGR = re.compile(r"\x1b\[[0-9;:]*m")
END = b"- the end -"


class Acts:
    """Terminal that records the text that it draws, and the name of every other operation."""

    def __init__(self) -> None:
        self.drawn = ""
        self.done: set[str] = set()

    def draw(self, text: str) -> None:
        self.drawn += text

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.done.add(name)

    @classmethod
    def on(cls, data: bytes) -> Acts:
        acts = cls()
        known = SGR.sub(lambda sgr: sgr[0].replace(":", ";"), data.decode())  # pyte knows no colons
        pyte.Stream(acts).feed(known)  # type: ignore[arg-type]
        return acts


def through_pty(write: Callable[[BinaryIO], Any]) -> bytes:
    """Return the output of a pseudo-terminal after some writes of a few kilobytes."""
    terminal, program = os.openpty()
    try:
        tty.setraw(program)
        with open(program, "wb", buffering=0, closefd=False) as sink:
            write(sink)
            sink.write(END)
        data = b""
        while not data.endswith(END):
            data += os.read(terminal, 1 << 16)
    finally:
        os.close(terminal)
        os.close(program)
    return data.removesuffix(END)


def harm(data: bytes) -> list[str]:
    """Return everything in a terminal's input that is not coloured text; [] for harmless input."""
    acts = Acts.on(data)
    found = sorted(acts.done - HARMLESS)
    plain = SGR.sub("", data.decode())
    if acts.drawn != re.sub("[\r\n\t]", "", plain):
        found.append("something was swallowed as a sequence that pyte knows")
    return found + sorted({unicodedata.name(c, hex(ord(c))) for c in plain if is_harmful(c)})


def is_harmful(character: str) -> bool:
    """Check, by the Unicode database, for controls, lone surrogates, line ends, and invisible reordering characters."""
    if character in "\r\n\t":
        return False
    reorders = unicodedata.bidirectional(character) in (
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
    )  # fmt: skip
    marks = character in "\u200e\u200f\u061c"
    return reorders or marks or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
