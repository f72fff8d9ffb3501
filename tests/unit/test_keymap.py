"""The person's own keys: what can be had, and in words what cannot."""

from __future__ import annotations

import pytest

from skyward_tui.ui.actions import ACTIONS, CONCURRENT_SCOPES, SCOPES, resolve_keymap, with_keys
from skyward_tui.ui.panel_registry import PANELS


@pytest.mark.parametrize(
    ("wished", "keymap"),
    [
        ({}, {}),
        ({"run.merge": "m"}, {"run.merge": "m"}),
        ({"run.merge": " m , Z,m"}, {"run.merge": "m,Z"}),
        ({"run.merge": ","}, {"run.merge": "comma"}),
        ({"run.merge": "+"}, {"run.merge": "plus"}),
        ({"app.help": "?, f1"}, {"app.help": "question_mark,f1"}),
        ({"pools.new": "ctrl+shift+n,é"}, {"pools.new": "ctrl+shift+n,é"}),
        ({"run.merge": "f", "run.follow": "a"}, {"run.merge": "f", "run.follow": "a"}),  # they change places
        ({"run.next_rank": "tab"}, {"run.next_rank": "tab"}),
        ({"pools.sweep": "u", "sweep.end": "K"}, {"pools.leftovers": "u", "leftovers.end": "K"}),  # older ids
        (
            {"log.start": "0", "panel.first": "0"},
            {"log.start": "0", "panel.first": "0"},
        ),  # never there at once
    ],
)
def test_keys_that_can_be_had(wished: dict[str, str], keymap: dict[str, str]) -> None:
    assert resolve_keymap(wished) == (keymap, [])


@pytest.mark.parametrize(
    ("wished", "said"),
    [
        ({"run.mrege": "m"}, "keys.run.mrege: unknown action; did you mean run.merge?"),
        ({"zzz": "m"}, "keys.zzz: unknown action"),
        ({"run.merge": ""}, "keys.run.merge: no key given"),
        ({"run.merge": "m,,"}, "keys.run.merge: no key given"),
        ({"run.merge": "hyperspace"}, "keys.run.merge: 'hyperspace' is not a key"),
        ({"run.merge": "cmd+m"}, "keys.run.merge: 'cmd+m' is not a key"),
        ({"run.merge": "\x1b"}, "keys.run.merge: '\\x1b' is not a key"),
        ({"run.merge": "ctrl+c"}, "keys.run.merge: ctrl+c copies the selection"),
        ({"run.merge": "ctrl+m"}, "keys.run.merge: ctrl+m is the same as enter in a terminal"),
        ({"run.merge": "f"}, "keys.run.merge: f is already bound to run.follow"),
        ({"run.merge": "k"}, "keys.run.merge: k is already bound to panel.up"),
        ({"run.merge": "?"}, "keys.run.merge: question_mark is already bound to app.help"),
        ({"app.help": "q"}, "keys.app.help: q is already bound to pools.quit"),
        ({"hostkey.accept": "escape"}, "keys.hostkey.accept: escape is already bound to dialog.close"),
    ],
)
def test_keys_that_cannot_be_had(wished: dict[str, str], said: str) -> None:
    keymap, (only,) = resolve_keymap(wished)
    assert keymap == {} and only == said


def test_of_two_wishes_for_one_key_the_first_has_it() -> None:
    keymap, said = resolve_keymap({"run.merge": "m", "run.follow": "m", "run.zoom": "Z"})
    assert keymap == {"run.merge": "m", "run.zoom": "Z"}
    assert said == ["keys.run.follow: m is already bound to run.merge"]


def test_what_is_refused_can_take_others_with_it() -> None:
    """Two that would change places, one of which stays: the other stays, too."""
    keymap, said = resolve_keymap({"run.merge": "f", "run.follow": "nonsense"})
    assert keymap == {} and len(said) == 2


def test_every_action_may_have_the_keys_that_it_has() -> None:
    keymap, said = resolve_keymap({action.id: action.keys for action in ACTIONS})
    assert said == [] and keymap == {action.id: action.keys for action in ACTIONS}


def test_scopes_that_live_at_once_are_scopes() -> None:
    assert {scope for pair in CONCURRENT_SCOPES for scope in pair} == set(SCOPES)


def test_texts_name_the_person_s_keys() -> None:
    text = "{run.errors} shows why, {no.such} and {run.merge}"
    assert with_keys(text, {"run.errors": "question_mark,E"}) == "? shows why, {no.such} and a"
    said = with_keys(" ".join(row.empty for row in PANELS), {})
    assert "(L: launch)" in said and "{" not in said
