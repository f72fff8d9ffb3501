"""What py-spy and faulthandler say of a process, taken apart; nothing of it is believed to be small."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

THREADS = 64  # of one rank that are told of
FRAMES = (96, 32)  # of one thread: the innermost, the outermost
LETTERS = 300  # of a name

Frame = list[Any]  # function, file, line; innermost first
Thread = dict[str, Any]  # as answers have it


class Places(NamedTuple):
    """Where a node has the person's files: named as the client has them, they are the same on all nodes.

    Attributes:
        sources: what scripts are made of, by content.
        here, there: the ranks' working folder, and the client's that it is a copy of; "" where it has none, None where
            both see the same files.
    """

    sources: str
    here: str
    there: str | None

    def known(self, file: str) -> str:
        """A file's path as the client knows it."""
        if file.startswith(self.sources + "/"):
            return file[len(self.sources) + 1 :].partition("/")[2]
        if self.here and self.there is not None and file.startswith(self.here + "/"):
            return f"{self.there}/{file[len(self.here) + 1 :]}" if self.there else file[len(self.here) + 1 :]
        return file

    def in_raw(self, raw: bytes) -> bytes:
        """The same in what py-spy writes raw."""
        text = raw.decode(errors="replace")
        return re.sub(r"(?<= \()[^;()]+(?=:\d+\))", lambda file: self.known(file[0]), text).encode()


_THREAD = re.compile(
    r"(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\n]*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def of_py_spy(said: bytes, pid: int) -> list[Thread]:
    """What ``py-spy dump --json`` says; the main thread of the process comes first, its children's threads last.

    Raises:
        ValueError: it says something else.
    """
    told = json.loads(said)
    if not isinstance(told, list):
        raise ValueError("py-spy tells of no threads")
    found = [_of_py_spy(each, pid) for each in told if isinstance(each, dict)]
    return [thread for _, thread in sorted(found, key=lambda each: each[0])[:THREADS] if thread["frames"]]


def _of_py_spy(told: dict[str, Any], pid: int) -> tuple[tuple[bool, int, bool], Thread]:
    child = told["pid"] if isinstance(told.get("pid"), int) and told["pid"] != pid else 0
    frames = (
        [_text(each.get("name")), _text(each.get("filename")), _line(each.get("line"))]
        for each in _list(told.get("frames"))
        if isinstance(each, dict)
    )
    thread: Thread = {
        "name": _text(told.get("thread_name")),
        "frames": _bounded(frames),
        "gil": told.get("owns_gil") is True,
    }
    if child:
        thread["child"] = child
    is_main = told.get("os_thread_id") == told.get("pid")
    return (bool(child), child, not is_main), thread


def of_faulthandler(said: str) -> list[Thread]:
    """What faulthandler writes; the main thread, which it names last, comes first."""
    threads: list[Thread] = []
    for line in said.splitlines():
        if head := _THREAD.fullmatch(line):
            threads.append({"name": _text(head[2]), "frames": [], "gil": False})
        elif threads and (frame := _FRAME.fullmatch(line)):
            file, number, name = frame.groups()
            threads[-1]["frames"].append(
                [_text(name), _text(file), _line(int(number) if number.isdecimal() else 0)]
            )
    threads.reverse()
    for thread in threads:
        thread["frames"] = _bounded(thread["frames"])
    return [thread for thread in threads[:THREADS] if thread["frames"]]


def with_known_files(threads: list[Thread], places: Places) -> list[Thread]:
    """The same threads; files are named as the client has them."""
    for thread in threads:
        for frame in thread["frames"]:
            frame[1] = places.known(frame[1])
    return threads


def bounded(threads: list[Thread], most: int) -> list[Thread]:
    """As many of them, the first ones first, as have no more frames together; always the first."""
    kept: list[Thread] = []
    for thread in threads:
        most -= len(thread["frames"])
        if kept and most < 0:
            break
        kept.append(thread)
    return kept


def _bounded(frames: Iterable[Frame]) -> list[Frame]:
    inner, outer = FRAMES
    every = list(frames)
    if len(every) <= inner + outer:
        return every
    left = len(every) - inner - outer
    return [*every[:inner], [f"({left:,} more)", "", 0], *every[-outer:]]


def _list(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else ())


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= LETTERS else "…" + text[-LETTERS:]


def _line(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else 0
