"""What to do about an error, in words of this program: the library tells it as data."""

from __future__ import annotations

import shlex
from typing import Protocol

from skyward_core.model.errors import Hint, command_hint, error_hint, error_message, message_with_hint


class HasDetail(Protocol):
    """A pool's view, what happened to it, or a line of a check-up."""

    @property
    def detail(self) -> str: ...

    @property
    def hint(self) -> Hint | None: ...


def format_error(error: BaseException) -> str:
    """An error, and what to do about it; safe to show where the error is."""
    return _joined(error_message(error), error_hint(error))


def format_detail(thing: HasDetail) -> str:
    """What is told of a thing, and what to do about it; safe to show where its detail is."""
    return _joined(thing.detail, thing.hint)


def _joined(what: str, hint: Hint | None) -> str:
    return what if hint is None else message_with_hint(what, advice(hint))


def advice(hint: Hint) -> str:
    """What to do, by commands of this program."""
    name = shlex.quote(hint.subject)
    match hint.action:
        case "attach":
            return f"use it (skyward-tui attach {name}), end it (skyward-tui down {name}), or choose another name"
        case "trust-host-key":
            also = f" --known-hosts {shlex.quote(hint.path)}" if hint.path else ""
            return f"accept it with: skyward-tui trust {name}{also}"
        case "upgrade":
            return "a newer release can read it: pip install -U skyward-tui"
        case _:
            return command_hint(hint)
