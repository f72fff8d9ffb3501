"""The person's own keys, as far as they can be had: no two things that are there at once have one key."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from textual.binding import Binding
from textual.keys import Keys

from .actions import ACTIONS, SCOPES, Action

# Scopes whose keys live at once, in what has the focus and in the screen around it.
TOGETHER = (
    *(("app", scope) for scope in SCOPES if scope != "app"),
    *(
        ("panel", scope)
        for scope in ("pools", "history", "sweep", "hosts", "settings", "run", "errors", "stacks")
    ),
    ("run", "log"),
    *((scope, "numbers") for scope in ("run", "panel")),
    *(("launch", scope) for scope in ("choice", "toggles", "fold")),
    *(("dialog", scope) for scope in ("help", "files", "teardown", "hostkey")),
)
# A terminal sends the same for these and for enter and tab; the last one copies, and ends nothing.
TAKEN = {"ctrl+j": "is enter to a terminal", "ctrl+m": "is enter to a terminal", "ctrl+i": "is tab to a terminal",
         "ctrl+c": "copies what is selected"}  # fmt: skip
_MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")


def usable(wished: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Of the keys that somebody wants, those that can be had, and in words why not the others. For these the app's own
    hold.

    Args:
        wished: keys in Textual's names, or as they are typed, with commas between them, by the action's id.
    """
    by_id = {action.id: action for action in ACTIONS}
    keymap: dict[str, str] = {}
    refused: list[str] = []
    for id, text in wished.items():
        if id not in by_id:
            near = get_close_matches(id, by_id, 1)
            refused.append(f"keys.{id}: there is no such action{f'; {near[0]} is one' if near else ''}")
            continue
        # A comma alone is one of them.
        keys = [_named(",")] if text.strip() == "," else [_named(key.strip()) for key in text.split(",")]
        wrong = [why for key in keys if (why := _doubt(key))]
        if wrong:
            refused.append(f"keys.{id}: {wrong[0]}")
        else:
            keymap[id] = ",".join(dict.fromkeys(keys))
    while clash := _clash(by_id, keymap):
        loser, winner, key = clash
        del keymap[loser]
        refused.append(f"keys.{loser}: {winner} has {key} already")
    return keymap, refused


def _named(key: str) -> str:
    """A key in Textual's names."""
    if key == ",":
        return "comma"
    return next(iter(Binding.make_bindings([(key, "", "")]))).key if len(key) == 1 else key


_NAMES = {key.value for key in Keys} | {_named(chr(code)) for code in range(0x21, 0x7F)}


def _doubt(key: str) -> str:
    """Why a key can be none, or ""."""
    if not key:
        return "it names no key"
    if key in TAKEN:
        return f"{key} {TAKEN[key]}"
    *modifiers, name = key.split("+")
    is_key = name in _NAMES or (len(name) == 1 and name.isprintable())
    return "" if is_key and all(each in _MODIFIERS for each in modifiers) else f"{key!r} is no key"


def _clash(by_id: Mapping[str, Action], keymap: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Two that would have one key: which of them has to do without it, the other, and the key. What the app itself has
    twice, such as q in a dialog and in the screen below, is meant so."""
    order = list(keymap)
    holders: dict[str, list[str]] = {}
    for id, action in by_id.items():
        for key in keymap.get(id, action.keys).split(","):
            holders.setdefault(key, []).append(id)
    for id in reversed(order):
        for key in keymap[id].split(","):
            for other in holders[key]:
                is_meant = all(key in by_id[each].keys.split(",") for each in (id, other))
                if other != id and not is_meant and _meet(by_id[id], by_id[other]):
                    return id, other, key
    return None


def _meet(one: Action, other: Action) -> bool:
    pair = {one.scope, other.scope}
    return len(pair) == 1 or any(pair == set(each) for each in TOGETHER)
