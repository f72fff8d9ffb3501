"""Key bindings of the user: valid, conflicting and invalid ones."""

from __future__ import annotations

import pytest

from skyward_tui.ui.actions import ACTIONS, resolve_keymap, shown_key, with_keys
from skyward_tui.ui.panel_registry import PANELS


@pytest.mark.parametrize(
    ("wished", "keymap"),
    [
        ({}, {}),
        ({"run.merge": "K"}, {"run.merge": "K"}),
        ({"run.merge": " K , Z,K"}, {"run.merge": "K,Z"}),
        ({"run.merge": ","}, {"run.merge": "comma"}),
        ({"app.help": "?, f1"}, {"app.help": "question_mark,f1"}),
        ({"pools.new": "ctrl+shift+n,é"}, {"pools.new": "ctrl+shift+n,é"}),
        ({"run.merge": "f", "run.follow": "a"}, {"run.merge": "f", "run.follow": "a"}),  # they change places
        ({"pools.sweep": "u", "sweep.end": "K"}, {"pools.leftovers": "u", "leftovers.end": "K"}),  # older ids
        ({"log.start": "0", "panel.first": "0"}, {"log.start": "0", "panel.first": "0"}),  # never there at once
    ],
)
def test_valid_key_bindings_are_applied(wished: dict[str, str], keymap: dict[str, str]) -> None:
    assert resolve_keymap(wished) == (keymap, [])


@pytest.mark.parametrize(
    ("wished", "message"),
    [
        ({"run.mrege": "K"}, "keys.run.mrege: unknown action; did you mean run.merge?"),
        ({"run.merge": ""}, "keys.run.merge: no key given"),
        ({"run.merge": "hyperspace"}, "keys.run.merge: 'hyperspace' is not a key"),
        ({"run.merge": "\x1b"}, "keys.run.merge: '\\x1b' is not a key"),
        ({"run.merge": "ctrl+c"}, "keys.run.merge: ctrl+c copies the selection"),
        ({"run.merge": "ctrl+m"}, "keys.run.merge: ctrl+m is the same as enter in a terminal"),
        ({"run.merge": "f"}, "keys.run.merge: f is already bound to run.follow"),
        ({"run.merge": "k"}, "keys.run.merge: k is already bound to panel.up"),
        ({"app.help": "q"}, "keys.app.help: q is already bound to pools.quit"),
        ({"hostkey.accept": "escape"}, "keys.hostkey.accept: esc is already bound to dialog.close"),
    ],
)
def test_invalid_key_binding_is_reported_and_ignored(wished: dict[str, str], message: str) -> None:
    keymap, (only,) = resolve_keymap(wished)
    assert keymap == {} and only == message


def test_first_of_two_bindings_for_one_key_is_applied() -> None:
    keymap, problems = resolve_keymap({"run.merge": "K", "run.follow": "K", "run.zoom": "Z"})
    assert keymap == {"run.merge": "K", "run.zoom": "Z"}
    assert problems == ["keys.run.follow: K is already bound to run.merge"]


def test_default_keys_of_every_action_are_a_valid_keymap() -> None:
    keymap, problems = resolve_keymap({action.id: action.keys for action in ACTIONS})
    assert problems == [] and keymap == {action.id: action.keys for action in ACTIONS}


def test_texts_name_the_bound_keys() -> None:
    text = "{run.errors} shows why, {no.such} and {run.merge}"
    assert with_keys(text, {"run.errors": "question_mark,E"}) == "? shows why, {no.such} and a"
    lines = with_keys(" ".join(row.empty for row in PANELS), {})
    assert "(L: launch)" in lines and "{" not in lines


def test_shown_keys_are_as_printed_on_the_keyboard() -> None:
    keys = {"dollar_sign": "$", "ctrl+dollar_sign": "ctrl+$", "ctrl+full_stop": "ctrl+.", "shift+tab": "shift+tab"}
    keys |= {"escape": "esc", "ctrl+enter": "ctrl+enter", "question_mark": "?", "plus": "+", "space": "space"}
    assert {key: shown_key(key) for key in keys} == keys
