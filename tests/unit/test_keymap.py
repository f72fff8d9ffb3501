"""Key bindings of the user: valid, conflicting and invalid ones."""

from __future__ import annotations

import pytest

from skyward_core.client.user_settings_and_app_state import UserCommand
from skyward_tui.ui.actions import ACTIONS, resolve_commands, resolve_keymap, shown_key, with_keys
from skyward_tui.ui.run_screen_panel_list_and_layout import PANELS


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
        ({"log.start": "f9", "panel.first": "f9"}, {"log.start": "f9", "panel.first": "f9"}),  # never there at once
    ],
)
def test_valid_key_bindings_are_applied(wished: dict[str, str], keymap: dict[str, str]) -> None:
    assert resolve_keymap(wished) == (keymap, [])


def test_key_of_a_command_must_be_free() -> None:
    given = [("a", "f8"), ("b", "f8"), ("c", "f"), ("d", "M"), ("e", "ctrl+c"), ("g", "tab"), ("h", "?")]
    commands = [UserCommand(name, key, ("true",)) for name, key in given]
    actions, refused = resolve_commands(commands, {"run.follow": "F", "app.help": "f1"})
    assert [(each.id, each.keys, each.call) for each in actions] == [
        ("commands.a", "f8", "app.own_command(0)"),
        ("commands.c", "f", "app.own_command(2)"),
    ]
    assert refused[0] == "commands.b: f8 is already bound to commands.a" and len(refused) == 5


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


# Keys with several actions, and the names of these actions, which mean the same on their screens.
ONE_MEANING = {
    "A": "again rerun", "F": "failed failures", "G": "end last", "K": "accept trust",
    "X": "down end forget remove", "a": "ended everywhere merge threads", "c": "compare diff",
    "ctrl+d": "half_down page_down", "ctrl+u": "half_up page_up", "ctrl+x": "delete end_all", "down": "down next",
    "e": "back errors", "end": "end last", "escape": "back close refuse", "f1": "close help", "g": "first start",
    "h": "left previous", "home": "first start",
    "l": "next right", "left": "left previous", "pagedown": "page_down plan_down", "pageup": "page_up plan_up",
    "q": "back close leave quit refuse", "question_mark": "close help", "r": "again refresh", "right": "next right",
    "s": "back stacks", "u": "collapse equal", "up": "previous up",
    "left_square_bracket": "previous previous_rank", "right_square_bracket": "next next_rank",
}  # fmt: skip
# enter and space act on the part that has the focus. n is "new" in lists; in texts it is "next", as in less.
EXCEPTIONS = {
    "enter": "change check log open switch toggle", "space": "mark open switch toggle", "n": "group new next_hit",
}  # fmt: skip


def test_each_key_has_one_meaning_on_all_screens() -> None:
    by_key: dict[str, set[str]] = {}
    for action in ACTIONS:
        for key in action.keys.split(","):
            by_key.setdefault(key, set()).add(action.id.partition(".")[2])
    shared = {key: " ".join(sorted(names)) for key, names in by_key.items() if len(names) > 1}
    assert shared == ONE_MEANING | EXCEPTIONS


def test_no_key_that_ends_or_deletes_something_is_harmless_elsewhere() -> None:
    risky = {key for action in ACTIONS if action.dangerous for key in action.keys.split(",")}
    harmless = {key for action in ACTIONS if action.is_read_only for key in action.keys.split(",")}
    assert not risky & harmless
