"""What the app keeps of how it was left: told and not used where it makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skyward_core.client import settings
from skyward_tui.ui.saved_state import KeptScreen, KeptState, Unusable, kept_state, understood, write_down

THEMES = ("nord", "skyward", "skyward-light")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_is_kept_comes_back(home: Path) -> None:
    assert kept_state() == KeptState()
    state = KeptState(theme="nord", over="skyward")
    settings.remember("app", state.text())
    assert kept_state() == state
    assert (home / "app.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "[]", "{", '{"version": 0}', '{"version": 2, "theme": "nord"}', '{"version": 1, "theme": 7}',
        "[" * 100_000, json.dumps({"version": 1, "theme": "x" * 100_000}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told(text: str) -> None:
    with pytest.raises(Unusable, match="how the app was left is not known, and it starts as new"):
        understood(text)


def test_what_cannot_be_read_is_told(home: Path) -> None:
    settings.remember("app", "{}")
    (home / "app.json").write_bytes(b"\xff")
    with pytest.raises(Unusable, match="cannot be read"):
        kept_state()
    (home / "app.json").unlink()
    (home / "app.json").mkdir()
    with pytest.raises(Unusable, match="cannot be read"):
        kept_state()


def test_what_a_later_release_keeps_beside_it_is_left_alone() -> None:
    assert understood('{"version": 1, "theme": "nord", "more": [1]}') == KeptState(theme="nord")


@pytest.mark.parametrize(
    ("kept", "wished", "asked", "theme", "wrong"),
    [
        (KeptState(), "", "", "", ""),
        (KeptState(), "nord", "", "nord", ""),
        (KeptState(), "nrod", "", "", "there is no theme 'nrod'"),
        (KeptState("nord", ""), "", "", "nord", ""),
        (KeptState("nord", "skyward"), "skyward", "", "nord", ""),
        (KeptState("nord", "skyward"), "skyward-light", "", "skyward-light", ""),  # set since
        (KeptState("nord", ""), "", "skyward", "skyward", ""),
        (KeptState("no-more", "skyward"), "skyward", "", "skyward", "there is no theme 'no-more'"),
    ],
)
def test_which_theme_an_app_starts_with(kept: KeptState, wished: str, asked: str, theme: str, wrong: str) -> None:
    assert kept.theme_of(wished, asked, THEMES) == (theme, wrong)


def test_two_apps_keep_what_each_has_changed() -> None:
    write_down({"theme": "nord", "over": ""}, {})
    write_down({}, {"run": {"zoom": True, "panel": "log"}})
    write_down({}, {"pools": {"sort": "name"}})
    screens: dict[str, KeptScreen] = {"run": {"zoom": True, "panel": "log"}, "pools": {"sort": "name"}}
    assert kept_state() == KeptState("nord", "", screens)


def test_what_makes_no_sense_gives_way(home: Path) -> None:
    settings.remember("app", "{")
    write_down({"theme": "nord"}, {})
    assert kept_state() == KeptState("nord")


@pytest.mark.parametrize("screens", ["[]", '{"run": []}', '{"run": {"zoom": 1}}', '{"run": {"zoom": {}}}', "7"])
def test_screens_that_make_no_sense_are_told(screens: str) -> None:
    with pytest.raises(Unusable):
        understood(f'{{"version": 1, "screens": {screens}}}')
