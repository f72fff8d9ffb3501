"""The line of arguments, ``epochs=3 lr=0.1``, and what it says of each of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def given(line: str) -> dict[str, str] | None:
    """Texts by name, of two of one name the first; None where somebody is still typing a quotation."""
    words = _words(line)
    if words is None:
        return None
    found: dict[str, str] = {}
    for name, equals, text in (word.partition("=") for word in words):
        if equals:
            found.setdefault(name.strip(), text)
    return found


def with_argument(line: str, name: str, text: str | None, order: Sequence[str]) -> str:
    """The line where one of them is otherwise; the same where a quotation in it has no end.

    Args:
        text: what it is; None where it is not given any more.
        order: names as the function has them, by which a new one finds its place.
    """
    words = _words(line)
    if words is None:
        return line
    places = [number for number, word in enumerate(words) if _name(word) == name]
    new = [] if text is None else [f"{name}={text}"]
    if places:
        place = places[0]
        words[place : place + 1] = new
    elif new:
        here = order.index(name)
        places = [number for number, word in enumerate(words) if _name(word) in order[:here]]
        behind = (number for number, word in enumerate(words) if _name(word) in order[here + 1 :])
        place = places[-1] + 1 if places else next(behind, len(words))
        words[place:place] = new
    else:
        return line
    return " ".join(map(_quoted, words))


def _words(line: str) -> list[str] | None:
    try:
        return shlex.split(line)
    except ValueError:
        return None


def _name(word: str) -> str:
    return word.partition("=")[0].strip()


def _quoted(word: str) -> str:
    name, equals, text = word.partition("=")
    if not (equals and name.isidentifier()):
        return shlex.quote(word)
    return f"{name}={shlex.quote(text)}" if text else word
