"""Registered keys equal the live keys on every screen and in every dialog."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from skyward_tui.app.app import ReplayApp, SkywardApp
from skyward_tui.dialogs.basic_dialogs import Dialog
from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.ui.actions import ACTIONS, SCOPES, Action
from tests.support.app_driver import on_run_screen, press, running_app, screen_text, until
from tests.support.every_screen import every_screen
from tests.support.fake_session import FakeSession, failed_run
from tests.support.host_key import shown
from tests.support.own_home import set_own

BY_ID = {action.id: action for action in ACTIONS}


def own_bindings(node: DOMNode) -> dict[str, Binding]:
    """Return the live bindings of a node by key, without those from Textual."""
    base = next(kind for kind in type(node).__mro__ if not kind.__module__.startswith("skyward_tui"))
    theirs = base._merged_bindings.key_to_bindings if issubclass(base, DOMNode) else {}  # type: ignore[union-attr]
    own = {}
    for key, live in node._bindings.key_to_bindings.items():
        assert len(live) == 1, (node, key)
        if live != theirs.get(key):
            own[key] = live[0]
    return own


def keys_of(action: Action) -> set[str]:
    return {binding.key for binding in Binding.make_bindings([(action.keys, "", "")])}


def check(node: DOMNode) -> set[str]:
    """Compare a node's bindings with the registry. Return the scopes of the node."""
    own = own_bindings(node)
    for key, binding in own.items():
        action = BY_ID.get(binding.id or "")
        assert action is not None, f"{node}: {key!r} ({binding.action}) is no key of the registry"
        assert binding.action == action.call, action.id
        assert key in keys_of(action), f"{node}: {key!r} is no key of {action.id}"
        namespace, _, name = action.call.partition("(")[0].rpartition(".")
        assert hasattr(SkywardApp if namespace == "app" else node, f"action_{name}"), action.id
    scopes = {BY_ID[binding.id or ""].scope for binding in own.values()}
    for action in ACTIONS:
        if action.scope in scopes:
            missing = keys_of(action) - set(own)
            assert not missing, f"{node}: {missing} of {action.id} do nothing"
    return scopes


async def test_live_keys_and_registered_keys_are_equal(app: SkywardApp, session: FakeSession) -> None:
    screens = every_screen(session)
    async with running_app(app, (120, 40), until=lambda: app.session is not None):
        scopes = check(app)
        for make in screens:
            screen: Screen[object] = make()
            await app.push_screen(screen)
            for node in (screen, *screen.query("*")):
                scopes |= check(node)
            app.pop_screen()
    scopes |= check(ReplayApp(Path("record")))
    assert scopes == set(SCOPES)


@pytest.mark.parametrize(
    ("key", "actions"),
    [
        ("n", {"pools.new", "hosts.group", "run.next_hit"}),
        ("p", {"replay.pause", "run.pause"}),
        ("a", {"pools.ended", "leftovers.everywhere", "run.merge", "stacks.threads"}),
        ("o", {"history.sort"}),
        ("B", {"run.fetch"}),
        ("comma", {"pools.settings"}),
        ("plus", {"hosts.add"}),
        ("space", {"pools.mark", "history.mark", "choice.open", "toggles.switch", "fold.toggle"}),
    ],
)
def test_key_has_the_same_meaning_on_all_screens(key: str, actions: set[str]) -> None:
    assert {action.id for action in ACTIONS if key in keys_of(action)} == actions


async def test_escape_closes_every_dialog_and_arrows_cycle_its_buttons(app: SkywardApp, session: FakeSession) -> None:
    screens = every_screen(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None and "llama-ft" in screen_text(app))
        dialogs = 0
        for make in screens:
            screen = make()
            if not isinstance(screen, Dialog):
                continue
            dialogs += 1
            await app.push_screen(screen)
            await until(pilot, lambda screen=screen: screen.focused is not None)  # type: ignore[misc]
            first = screen.focused
            choices = [widget for widget in screen.focus_chain if widget.id]
            assert not choices or first is choices[0]
            if list(screen.buttons()):
                await pilot.press("down")
                assert screen.focused is choices[1 % len(choices)]
                await pilot.press("up")
                assert screen.focused is first
            await pilot.press("escape")
            await until(pilot, lambda screen=screen: app.screen is not screen)  # type: ignore[misc]
        assert dialogs == 16
        assert not session.torn_down


async def test_dialogs_show_remapped_keys(app: SkywardApp) -> None:
    set_own('[keys]\n"hostkey.accept" = "Y"\n"dialog.close" = "f10"\n')
    async with running_app(app, (120, 40), until=lambda: app.session is not None) as pilot:
        await press(pilot, "?", until="f10: close")
        await press(pilot, "escape", "f10", until=lambda: "f10: close" not in screen_text(app))
        answers: list[bool | None] = []
        await app.push_screen(HostKeyScreen(shown()), answers.append)
        await until(pilot, "Accept (Y)")
        await pilot.press("K")
        assert not answers
        await press(pilot, "Y", until=lambda: answers == [True])


async def test_conflicting_keys_are_reported_and_defaults_stay_in_effect(app: SkywardApp, session: FakeSession) -> None:
    set_own('[keys]\n"run.merge" = "f"\n"run.nothing" = "x"\n"pools.new" = "N"\n')
    async with running_app(app, (160, 24), until="keys.run.merge: f is already bound to run.follow") as pilot:
        assert "keys.run.nothing: unknown action" in screen_text(app)
        await until(pilot, "Press N to launch a script")
        assert app.keys == {"pools.new": "N"}
        await pilot.press("n")
        assert app.screen is app.screen_stack[0]
        await press(pilot, "N", until=lambda: len(app.screen_stack) == 2)


async def test_keys_of_two_actions_can_be_swapped(app: SkywardApp, session: FakeSession) -> None:
    set_own('[keys]\n"run.merge" = "f"\n"run.follow" = "a"\n')
    failed_run(session, session.pool("llama-ft"))
    async with on_run_screen(app, (160, 24)) as (pilot, _):
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await pilot.press("a")
        assert not screen.merged
        await pilot.press("f")
        assert screen.merged
