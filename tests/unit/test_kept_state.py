"""What the app keeps of how it was left: told and not used where it makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skyward_core.client import settings
from skyward_tui.ui.saved_state import (
    InvalidStateFile,
    SavedState,
    ScreenState,
    load_state,
    parse_state,
    save_state,
)

THEMES = ("nord", "skyward", "skyward-light")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_is_kept_comes_back(home: Path) -> None:
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
def test_what_makes_no_sense_is_told(text: str) -> None:
    with pytest.raises(InvalidStateFile, match="ignored the saved state of the app"):
        parse_state(text)


def test_what_cannot_be_read_is_told(home: Path) -> None:
    settings.save_state("app", "{}")
    (home / "app.json").write_bytes(b"\xff")
    with pytest.raises(InvalidStateFile, match="cannot read"):
        load_state()
    (home / "app.json").unlink()
    (home / "app.json").mkdir()
    with pytest.raises(InvalidStateFile, match="cannot read"):
        load_state()


def test_what_a_later_release_keeps_beside_it_is_left_alone() -> None:
    assert parse_state('{"version": 1, "theme": "nord", "more": [1]}') == SavedState(theme="nord")


@pytest.mark.parametrize(
    ("kept", "wished", "asked", "theme", "wrong"),
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
def test_which_theme_an_app_starts_with(kept: SavedState, wished: str, asked: str, theme: str, wrong: str) -> None:
    assert kept.resolve_theme(wished, asked, THEMES) == (theme, wrong)


def test_two_apps_keep_what_each_has_changed() -> None:
    save_state({"theme": "nord", "over": ""}, {})
    save_state({}, {"run": {"zoom": True, "panel": "log"}})
    save_state({}, {"pools": {"sort": "name"}})
    screens: dict[str, ScreenState] = {"run": {"zoom": True, "panel": "log"}, "pools": {"sort": "name"}}
    assert load_state() == SavedState("nord", "", screens)


def test_what_makes_no_sense_gives_way(home: Path) -> None:
    settings.save_state("app", "{")
    save_state({"theme": "nord"}, {})
    assert load_state() == SavedState("nord")


@pytest.mark.parametrize("screens", ["[]", '{"run": []}', '{"run": {"zoom": 1}}', '{"run": {"zoom": {}}}', "7"])
def test_screens_that_make_no_sense_are_told(screens: str) -> None:
    with pytest.raises(InvalidStateFile):
        parse_state(f'{{"version": 1, "screens": {screens}}}')
