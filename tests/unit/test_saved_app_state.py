"""Saved state of the app: theme and screens, and invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skyward_core.client import user_settings_and_app_state as settings
from skyward_tui.ui.saved_state import InvalidStateFile, SavedState, ScreenState, load_state, parse_state, save_state

THEMES = ("nord", "skyward", "skyward-light")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_saved_app_state_is_loaded_unchanged_from_a_private_file(home: Path) -> None:
    assert load_state() == SavedState()
    state = SavedState(theme="nord", over="skyward")
    settings.save_state("app", state.to_json())
    assert load_state() == state
    assert (home / "app.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "[]", "{", '{"version": 0}', '{"version": 2, "theme": "nord"}', '{"version": 1, "theme": 7}',
        "[" * 100_000, json.dumps({"version": 1, "theme": "x" * 100_000}),
    ],
)  # fmt: skip
def test_invalid_app_state_is_reported(text: str) -> None:
    with pytest.raises(InvalidStateFile, match="ignored the saved state of the app"):
        parse_state(text)


@pytest.mark.parametrize(
    ("saved", "wished", "asked", "theme", "wrong"),
    [
        (SavedState(), "", "", "", ""),
        (SavedState(), "nord", "", "nord", ""),
        (SavedState(), "nrod", "", "", "theme 'nrod' does not exist"),
        (SavedState("nord", ""), "", "", "nord", ""),
        (SavedState("nord", "skyward"), "skyward", "", "nord", ""),
        (SavedState("nord", "skyward"), "skyward-light", "", "skyward-light", ""),  # set since
        (SavedState("nord", ""), "", "skyward", "skyward", ""),
        (SavedState("no-more", "skyward"), "skyward", "", "skyward", "theme 'no-more' does not exist"),
    ],
)
def test_theme_option_overrides_setting_and_saved_theme(
    saved: SavedState, wished: str, asked: str, theme: str, wrong: str
) -> None:
    assert saved.resolve_theme(wished, asked, THEMES) == (theme, wrong)


def test_two_apps_save_only_their_own_changes() -> None:
    save_state({"theme": "nord", "over": ""}, {})
    save_state({}, {"run": {"zoom": True, "panel": "log"}})
    save_state({}, {"pools": {"sort": "name"}})
    screens: dict[str, ScreenState] = {"run": {"zoom": True, "panel": "log"}, "pools": {"sort": "name"}}
    assert load_state() == SavedState("nord", "", screens)


def test_invalid_app_state_file_is_overwritten(home: Path) -> None:
    settings.save_state("app", "{")
    save_state({"theme": "nord"}, {})
    assert load_state() == SavedState("nord")


@pytest.mark.parametrize("screens", ["[]", '{"run": []}', '{"run": {"zoom": 1}}', '{"run": {"zoom": {}}}', "7"])
def test_invalid_saved_screens_are_reported(screens: str) -> None:
    with pytest.raises(InvalidStateFile):
        parse_state(f'{{"version": 1, "screens": {screens}}}')
