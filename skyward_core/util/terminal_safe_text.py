"""Text of ranks, hosts and servers, made safe to show on a terminal. Standard library only.

Whoever wrote such text may mean harm: an escape sequence can set the clipboard, change the title or paint over other
lines, a direction override can make text read as what it is not. A tokenizer takes the text apart as a terminal
would (ECMA-48, and the parser that terminals share: an escape character begins anew wherever it stands, control
characters inside a sequence do not end it). What comes out is put together from nothing but text and, where
colours are wanted, whole SGR sequences, so that what is taken out can never leave a new sequence behind.

What was no sequence and cannot be shown shows as "�".
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

NEWLINE, TAB = "↵", "⇥"  # what they show as where a text has to stay within one line
RESET = "\x1b[0m"
MAX_DEPTH = 32

_REPLACEMENT = "�"
_CONTROL_TABLE = bytes(0 if (byte < 0x20 and byte not in b"\n\t") or byte == 0x7F else byte for byte in range(256))
# Control characters, zero-width and formatting ones that hide or reorder text (joiners, which emoji and whole scripts
# need, do neither), other line ends, and halves of surrogate pairs, which cannot be encoded.
_UNSAFE_CHARACTERS = (
    "\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_SGR = r"\[[0-9;:]{0,200}m"
_STRING_ENDS = "\x07\x18\x1a"  # BEL, and CAN and SUB, which break any sequence off
_IGNORED_IN_SEQUENCE = r"\x00-\x17\x19\x1c-\x1f\x7f"  # within a sequence; neither ESC nor what breaks it off


class _Patterns(NamedTuple):
    """``sequence``: what follows ESC, a control sequence, the beginning of a string, or a short sequence, each of which
    may be cut short."""

    forbidden: re.Pattern[str]
    colored: re.Pattern[str]
    sgr: re.Pattern[str]
    sequence: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Made when a text first needs them: most are plain, and these would be more than a millisecond of a start."""
    return _Patterns(
        re.compile(f"[{_UNSAFE_CHARACTERS}]"),
        re.compile(rf"[^{_UNSAFE_CHARACTERS}]*(?:\x1b{_SGR}[^{_UNSAFE_CHARACTERS}]*)*"),
        re.compile(_SGR),
        re.compile(
            rf"[{_IGNORED_IN_SEQUENCE}]*(?:\[[{_IGNORED_IN_SEQUENCE} "
            rf"-?]*[@-~\x18\x1a]?|(?P<string>[\]PX^_])|[{_IGNORED_IN_SEQUENCE} -/]*[0-~\x18\x1a]?)"
        ),
    )


def is_plain_ascii(data: bytes) -> bool:
    """Whether bytes are ASCII that needs no filter: lines and tabs, nothing else that a terminal acts on.

    Quick, for floods; where it says no the text may still be harmless.
    """
    return data.isascii() and b"\0" not in data.translate(_CONTROL_TABLE)


def sanitize_colored(line: str) -> str:
    """One line of a log: text, tabs and colours."""
    if line.isprintable() or _patterns().colored.fullmatch(line):
        return line
    return _filter_colors(line, colors=True)


def reset_colors(line: str) -> str:
    """A :func:`colored` line as it is printed: its colours end with it."""
    return line + RESET if "\x1b" in line else line


def sanitize_line(text: str) -> str:
    """What has to stay within one line (a name, a value, a message in a table): printable text, nothing else."""
    if text.isprintable():
        return text
    marked = re.sub("\r\n?|\n", NEWLINE, text).replace("\t", TAB)
    return _filter_colors(marked, colors=False)


def sanitize_paragraph(text: str) -> str:
    """Text of several lines (a traceback, a host's answer): printable, newlines stay, tabs become spaces."""
    if text.isprintable():
        return text
    lines = re.sub("\r\n?", "\n", text).split("\n")
    return "\n".join(_filter_colors(line, colors=False).expandtabs(8) for line in lines)


def sanitize_json(thing: Any, depth: int = MAX_DEPTH) -> Any:
    """A value of JSON types with every text in it, keys of objects too, a :func:`field`.

    Args:
        depth: levels of lists and objects that are looked into; deeper ones become "…".
    """
    kind = type(thing)
    if kind is str:
        return sanitize_line(thing)
    if kind is not dict and kind is not list and kind is not tuple:
        return thing
    if not depth:
        return "…"
    if kind is dict:
        return {sanitize_line(str(key)): sanitize_json(item, depth - 1) for key, item in thing.items()}
    return [sanitize_json(item, depth - 1) for item in thing]


def sanitize_in_place(text: str) -> str:
    """The same number of characters, so that places in it stay true, each that cannot be shown as a mark; what has
    been a sequence shows as text. For a line that is edited."""
    return text if text.isprintable() else _patterns().forbidden.sub(_REPLACEMENT, text)


def _filter_colors(line: str, *, colors: bool) -> str:
    if not line.isascii():
        line = re.sub("[\x80-\x9f]", _expand_c1, line)
    patterns = _patterns()
    if "\x1b" not in line:
        return patterns.forbidden.sub(_REPLACEMENT, line)
    text, *sequences = re.split("\x1b+", line)
    out = [sanitize_in_place(text)]
    last = len(sequences) - 1
    for place, rest in enumerate(sequences):  # each began with ESC, and ends at the latest before the next one
        if colors and (sgr := patterns.sgr.match(rest)):
            out += ("\x1b", sgr[0], sanitize_in_place(rest[sgr.end() :]))
        else:
            out.append(sanitize_in_place(rest[_sequence_end(rest, is_last=place == last) :]))
    return "".join(out)


def _sequence_end(rest: str, *, is_last: bool) -> int:
    """Where text begins again behind ESC."""
    sequence = _patterns().sequence.match(rest)
    if sequence is None:
        return 0
    if sequence["string"] is None:
        return sequence.end()
    ends = [at for each in _STRING_ENDS if (at := rest.find(each, sequence.end())) >= 0]
    if ends:
        return min(ends) + 1
    # The next ESC ends it. Where none comes, what would never end is shown rather than lost.
    return sequence.end() if is_last else len(rest)


def _expand_c1(c1: re.Match[str]) -> str:
    """A control character of the upper range as the two characters that mean the same."""
    return "\x1b" + chr(ord(c1[0]) - 0x40)
