"""The checks of :mod:`.messages` as single expressions, for kinds of frames of which there are thousands a second.

A check there is a function that calls functions, key by key; that is plain to read, and takes as long as to parse the
frame. Here the same checks become one expression without calls, when a kind has been seen often enough to be worth
being compiled. It only says yes or no: who wants to know what is wrong asks the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import messages
from .wire import MOST

Check = Callable[[Any], object]

_TEXTS: dict[Check, str] = {
    messages.is_text: "type(v) is str",
    messages.is_flag: "type(v) is bool",
    messages.is_number: f"(type(v) is float or type(v) is int) and -{MOST} < v < {MOST}",
    messages.is_count: f"type(v) is int and 0 <= v < {MOST}",
    messages.is_call: f"type(v) is int and 0 <= v < {messages.CALLS}",
    messages.is_run: "type(v) is str and 0 < len(v) <= 64 and v.isalnum() and v.isascii() or is_run(v)",
    messages.is_rank: f"type(v) is int and -1 <= v < {messages.RANKS}",
}
_MISSING = object()


def compiled(needs: Mapping[str, Check], may: Mapping[str, Check], *, only: bool = False) -> Check:
    """An object's check as :class:`.messages.Form` has it.

    Args:
        needs, may: the checks of values that must be there, and of those that may, by key.
        only: no other keys may be there.

    Raises:
        KeyError: by what it gives: a value that must be there is not.
    """
    names: dict[str, Any] = {
        "is_run": messages.is_run,
        "missing": _MISSING,
        "known": needs.keys() | may.keys(),
    }
    parts = [f"((v := h[{key!r}]) is missing or {_text(check, names)})" for key, check in needs.items()]
    parts += ["h.keys() <= known"] if only else []
    parts += [
        f"((v := h.get({key!r}, missing)) is missing or {_text(check, names)})" for key, check in may.items()
    ]
    # Of nothing but keys and checks that this package's own source holds.
    check: Check = eval("lambda h: " + " and ".join(parts), names)  # noqa: S307
    return check


def _text(check: Check, names: dict[str, Any]) -> str:
    """A check of ``v`` as an expression; what it needs beyond that is put among the names."""
    if check in _TEXTS:
        return f"({_TEXTS[check]})"
    if (inner := getattr(check, "unless_none", None)) is not None:
        return f"(v is None or {_text(inner, names)})"
    name = f"c{len(names)}"
    if (values := getattr(check, "one_of", None)) is not None:
        names[name] = values
        return f"(type(v) is str and v in {name})"
    if (made_of := getattr(check, "made_of", None)) is not None:
        needs, may, only = made_of
        names[name] = compiled(needs, may, only=only)
        return f"(type(v) is dict and {name}(v))"
    names[name] = check
    return f"{name}(v)"
