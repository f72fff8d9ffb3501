"""Advice about errors, in terms of skyward-tui's commands. The library provides hints as data without text."""

from __future__ import annotations

import shlex
from typing import Protocol

from skyward_core.model.errors import Hint, command_hint, error_hint, error_message, message_with_hint


class HasDetail(Protocol):
    """Object with a detail text and a hint: a pool's view, an event, or a check of ``doctor``."""

    @property
    def detail(self) -> str: ...

    @property
    def hint(self) -> Hint | None: ...


def format_error(error: BaseException) -> str:
    """Return the message of an error, followed by advice."""
    return _joined(error_message(error), error_hint(error))


def format_detail(thing: HasDetail) -> str:
    """Return the detail text of an object, followed by advice."""
    return _joined(thing.detail, thing.hint)


def _joined(what: str, hint: Hint | None) -> str:
    return what if hint is None else message_with_hint(what, advice(hint))


def advice(hint: Hint) -> str:
    """Return the advice for a hint as text."""
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
