"""Sanitizing of text from ranks, hosts and servers for display on a terminal.

Such text may be malicious: an escape sequence can set the clipboard, change the title or overwrite lines, and a
direction override can disguise text. A tokenizer parses the text as terminals do (ECMA-48): an escape character
restarts a sequence, and control characters inside a sequence do not end it. The output consists only of text and, if
colors are allowed, complete SGR sequences, so removed parts can never form a new sequence. Unprintable characters
outside of sequences are shown as "�".
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

NEWLINE, TAB = "↵", "⇥"  # replacements of newline and tab in text that must stay on one line
RESET = "\x1b[0m"
MAX_DEPTH = 32

_REPLACEMENT = "�"
_CONTROL_TABLE = bytes(0 if (byte < 0x20 and byte not in b"\n\t") or byte == 0x7F else byte for byte in range(256))
# Control characters, zero-width and formatting characters that hide or reorder text, other line ends, and lone
# surrogates, which cannot be encoded. Joiners, which emoji and several scripts need, are allowed.
_UNSAFE_CHARACTERS = (
    "\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_SGR = r"\[[0-9;:]{0,200}m"
_STRING_ENDS = "\x07\x18\x1a"  # control characters BEL, CAN and SUB, of which CAN and SUB cancel any sequence
_IGNORED_IN_SEQUENCE = r"\x00-\x17\x19\x1c-\x1f\x7f"  # control characters that neither start nor cancel a sequence


class _Patterns(NamedTuple):
    """Compiled patterns of terminal sequences.

    ``sequence`` matches the text of a sequence after its ESC: a control sequence, the start of a string, or a short
    sequence. The sequence may be truncated.
    """

    forbidden: re.Pattern[str]
    colored: re.Pattern[str]
    sgr: re.Pattern[str]
    sequence: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Return the patterns, compiled at first use, because most text is plain and compiling takes over 1 ms."""
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
    """Check whether bytes are ASCII text with only newlines and tabs as control characters.

    Fast, for large outputs. False does not mean that the text is harmful.
    """
    return data.isascii() and b"\0" not in data.translate(_CONTROL_TABLE)


def sanitize_colored(line: str) -> str:
    """Return one line of a log reduced to text, tabs and colors."""
    return line if line.isprintable() or _patterns().colored.fullmatch(line) else _filter_colors(line, colors=True)


def reset_colors(line: str) -> str:
    """Return a line from :func:`sanitize_colored`. If it sets a color, reset the color at the end."""
    return line + RESET if "\x1b" in line else line


def sanitize_line(text: str) -> str:
    """Return text for one line (a name, a value, a message in a table), reduced to printable characters."""
    if text.isprintable():
        return text
    return _filter_colors(re.sub("\r\n?|\n", NEWLINE, text).replace("\t", TAB), colors=False)


def sanitize_paragraph(text: str) -> str:
    """Return text of several lines (a traceback, a host's answer), reduced to printable characters and newlines."""
    if text.isprintable():
        return text
    lines = re.sub("\r\n?", "\n", text).split("\n")
    return "\n".join(_filter_colors(line, colors=False).expandtabs(8) for line in lines)


def sanitize_json(thing: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a JSON value with every text, including keys, sanitized by :func:`sanitize_line`.

    Args:
        depth: Maximum nesting level; deeper lists and objects become "…".
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
    """Return text of the same length, with unprintable characters replaced.

    Used for text in an input field, where positions must stay valid.
    """
    return text if text.isprintable() else _patterns().forbidden.sub(_REPLACEMENT, text)


def _filter_colors(line: str, *, colors: bool) -> str:
    if not line.isascii():
        # Replace C1 control characters by the equivalent sequences of two characters (ESC and another).
        line = re.sub("[\x80-\x9f]", lambda c1: "\x1b" + chr(ord(c1[0]) - 0x40), line)
    patterns = _patterns()
    if "\x1b" not in line:
        return patterns.forbidden.sub(_REPLACEMENT, line)
    text, *sequences = re.split("\x1b+", line)
    out = [sanitize_in_place(text)]
    last = len(sequences) - 1
    for place, rest in enumerate(sequences):  # Each item is the text between two ESC characters.
        if colors and (sgr := patterns.sgr.match(rest)):
            out += ("\x1b", sgr[0], sanitize_in_place(rest[sgr.end() :]))
        else:
            out.append(sanitize_in_place(rest[_sequence_end(rest, is_last=place == last) :]))
    return "".join(out)


def _sequence_end(rest: str, *, is_last: bool) -> int:
    """Return the index at which a terminal sequence ends, in the text that follows its ESC character."""
    sequence = _patterns().sequence.match(rest)
    if sequence is None:
        return 0
    if sequence["string"] is None:
        return sequence.end()
    ends = [at for each in _STRING_ENDS if (at := rest.find(each, sequence.end())) >= 0]
    if ends:
        return min(ends) + 1
    # Normally the next ESC ends the string. Show a string that never ends, instead of dropping all following text.
    return sequence.end() if is_last else len(rest)
