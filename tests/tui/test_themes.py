"""Every theme can paint every screen, and a crash shows in the exit status."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from textual.app import ComposeResult
from textual.color import Color
from textual.command import CommandPalette
from textual.content import Content
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input, Select
from textual.widgets.option_list import Option

import skyward_tui
from skyward_tui.app.app import SkywardApp
from skyward_tui.cli import main
from skyward_tui.screens.run import RunScreen
from skyward_tui.text.state_styles import _STATE_STYLES
from skyward_tui.ui.themes import CONTRAST, RANK_HUES, UNCOLOURED, contrast, ensure_contrast, rank_style
from skyward_tui.widgets.form_fields import OptionRows
from skyward_tui.widgets.virtual_list import CursorList
from tests.support.app_driver import (
    Size,
    on_launch_form,
    on_run_screen,
    press,
    running_app,
    screen_svg,
    screen_text,
    until,
)
from tests.support.every_screen import every_screen
from tests.support.fake_session import FakeSession
from tests.support.own_home import set_own

PRINTABLE = {chr(code) for code in range(0x20, 0x7F)} | {"\n"}

PACKAGE = Path(skyward_tui.__file__).parent


def test_every_screen_class_is_tested(session: FakeSession) -> None:
    made = {type(make()) for make in every_screen(session)}
    for path in (*(PACKAGE / "screens").glob("*.py"), *(PACKAGE / "dialogs").glob("*.py")):
        text = path.read_text("utf-8")
        names = {line.split()[1].partition("(")[0] for line in text.splitlines() if line.startswith("class ")}
        for name in names - {"BaseScreen", "DismissOnceScreen", "ListScreen"}:
            if name.endswith("Screen"):
                assert name in {kind.__name__ for kind in made}, name


@pytest.mark.proof("2 s of a processor")
async def test_all_themes_paint_all_screens(app: SkywardApp, session: FakeSession, proofs: bool) -> None:
    """A theme change parses the styles of all mounted screens, which takes most of the time.

    All screens are therefore mounted first. Each theme (one in three without proofs) then paints some of the screens
    in turn, on a small terminal. Theme colours in the texts of screens are tested for every theme below.
    """
    screens = [make() for make in every_screen(session)]
    async with running_app(app, (80, 24), until=lambda: app.session is not None) as pilot:
        for place, screen in enumerate(screens):
            app.install_screen(screen, str(place))
            await app.push_screen(str(place))
            await pilot.pause()
            app.pop_screen()
        turn = itertools.cycle(range(len(screens)))
        for theme in list(app.available_themes)[:: 1 if proofs else 3]:
            app.theme = theme
            for place in itertools.islice(turn, 2):
                await app.push_screen(str(place))
                await pilot.pause()
                assert screen_text(app).strip(), theme
                app.pop_screen()
            assert app.is_running, theme


async def test_named_colours_exist_in_every_theme(app: SkywardApp) -> None:
    files = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".tcss"))
    sources = "".join(path.read_text("utf-8") for path in files)
    names = set(re.findall(r"\$([a-z]+(?:-[a-z]+)*)", sources))
    assert {"muted", "text-error", "border-blurred"} <= names
    for theme in app.available_themes:
        app.theme = theme
        variables = app.get_css_variables()
        assert names <= set(variables), theme
        for name in names:
            assert Style.parse(f"${name}", variables).foreground is not None, (theme, name)


async def test_states_are_readable_in_every_theme(app: SkywardApp) -> None:
    """WCAG 2.2 requires a contrast of 4.5 to 1; ended states are dimmer."""
    async with app.run_test(size=(80, 24)):
        for theme in app.available_themes.values():
            app.theme = theme.name
            variables = app.get_css_variables()
            states = sorted({each.style.removeprefix("$") for each in _STATE_STYLES.values()})
            assert states == ["muted", "text-error", "text-primary", "text-success", "text-warning"]
            for name in (*states, "text-accent"):
                color = Color.parse(variables[name])
                if theme.ansi:
                    assert color.ansi is not None, "the terminal's own"
                    continue
                for behind in ("background", "surface", "panel"):
                    least = 4.0 if name == "muted" else 4.5
                    assert contrast(color, Color.parse(variables[behind])) >= least, (theme.name, name, behind)


async def test_high_contrast_theme_has_high_contrast() -> None:
    variables = ensure_contrast(CONTRAST.to_color_system().generate() | CONTRAST.variables, ansi=False)
    for name in ("foreground", "muted", "text-error", "text-success", "text-warning", "text-primary", "border"):
        assert contrast(Color.parse(variables[name]), Color.parse(variables["background"])) >= 7, name


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
async def test_ascii_mode_paints_every_screen_in_ascii(session: FakeSession, size: Size) -> None:
    app = SkywardApp(lambda: session, clock=lambda: session.now, plain=True)
    screens = every_screen(session)
    session.pool("wide", 32, 8)
    async with running_app(app, size, until=lambda: app.session is not None) as pilot:
        for make in (*screens, lambda: RunScreen(session.view("wide").key)):
            screen = make()
            await app.push_screen(screen)
            for _ in range(3):
                await pilot.pause()
                text = screen_text(app)
                assert set(text) <= PRINTABLE, sorted(set(text) - PRINTABLE)
                await pilot.press("tab")
            assert text.strip()
            if app.screen is screen:  # any key ends a jump
                app.pop_screen()


@pytest.mark.proof("2 s of a processor")
async def test_no_color_mode_paints_no_colour(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    screens = every_screen(session)
    async with running_app(app, (120, 40), until=lambda: app.session is not None) as pilot:
        for make in screens:
            await app.push_screen(make())
            await pilot.pause()
            styles = {style for strip in app.screen._compositor.render_strips() for _, style, _ in strip if style}
            assert all(style.color is None and style.bgcolor is None for style in styles), app.screen
            app.pop_screen()
        app.theme = "nord"
        await until(pilot, "NO_COLOR is set, so themes have no effect")
        assert app.theme == UNCOLOURED


@pytest.mark.parametrize(("value", "theme"), [("1", "nord"), ("", "")])
async def test_theme_option_or_empty_no_color_keeps_colours(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch, value: str, theme: str
) -> None:
    """An empty NO_COLOR has no effect; see no-color.org."""
    monkeypatch.setenv("NO_COLOR", value)
    app = SkywardApp(lambda: session, clock=lambda: session.now, theme=theme)
    async with running_app(app, (80, 24), until=lambda: app.session is not None):
        assert app.theme == (theme or "skyward")
        colours = {c for c in re.findall(r"fill: #([0-9a-fA-F]{6})", screen_svg(app)) if c[:2] != c[2:4]}
        assert len(colours) > 3


def is_kept(app: SkywardApp) -> bool:
    """Check whether the chosen theme was saved."""
    return all(worker.group != "keep" for worker in app.workers)


@pytest.mark.proof("0.5 s of a processor")
@pytest.mark.usefixtures("painted")
async def test_chosen_theme_is_used_at_the_next_start(session: FakeSession) -> None:
    for theme_name in ("skyward", "nord", "nord"):
        app = SkywardApp(lambda: session, clock=lambda: session.now)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda app=app: app.session is not None)  # type: ignore[misc]
            assert app.theme == theme_name
            if theme_name == "skyward":
                app.action_change_theme()
                await until(pilot, lambda app=app: isinstance(app.screen, CommandPalette))  # type: ignore[misc]
                await pilot.press(*"nord")
                await until(pilot, lambda app=app: screen_text(app).count("nord") > 1)  # type: ignore[misc]
                await pilot.press("down", "enter")
                await until(pilot, lambda app=app: app.theme == "nord" and is_kept(app))  # type: ignore[misc]
    set_own('[app]\ntheme = "skyward-light"\nascii = true\n')
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    async with running_app(app, (80, 24), until=lambda: app.session is not None) as pilot:
        assert app.theme == "skyward-light", "it was set since"
        assert screen_text(app).isascii()


async def test_highlighted_theme_is_previewed_and_escape_restores_the_chosen_one(app: SkywardApp) -> None:
    async with running_app(app, (80, 24), until=lambda: app.session is not None) as pilot:
        app.action_change_theme()
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await press(pilot, *"nord", "down", until=lambda: app.theme == "nord")
        await press(pilot, "escape", until=lambda: app.theme == "skyward")
        assert not app._changed, "a preview is not saved"


async def test_unknown_theme_in_the_settings_is_reported(session: FakeSession, app: SkywardApp) -> None:
    set_own('[app]\ntheme = "nrod"\n')
    async with running_app(app, (80, 24), until="theme 'nrod' does not exist"):
        assert app.theme == "skyward"


def test_unknown_theme_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with (
        click.Context(main.cli) as context,
        pytest.raises(click.UsageError, match=r"unknown theme 'x'\. Use one of: ansi-dark, "),
    ):
        context.invoke(main.cli, theme="x")
    with pytest.raises(click.UsageError, match="ls does not support --ascii"):
        main.cli.main(["--ascii", "ls"], standalone_mode=False)


def test_style_sheets_are_separate_files() -> None:
    sheets = [
        (path.name, value)
        for path in PACKAGE.rglob("*.py")
        for value in re.findall(r"\bDEFAULT_CSS(?::[^=]*)? = (.*)", path.read_text("utf-8"))
    ]
    assert len(sheets) > 10
    assert [each for each in sheets if not each[1].startswith("read_style_sheet(__file__")] == []


def test_crashed_app_has_a_nonzero_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    class Headless(SkywardApp):
        def run(self, **options: Any) -> None:
            super().run(headless=True, size=(80, 24))

    class Crashing(Headless):
        def on_mount(self) -> None:
            raise RuntimeError("boom")

    class Fine(Headless):
        def on_mount(self) -> None:
            self.set_timer(0.2, self.exit)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for kind, status in ((Crashing, 1), (Fine, 0)):
        monkeypatch.setattr("skyward_tui.app.app.SkywardApp", kind)
        with click.Context(main.cli) as context:
            assert context.invoke(main.cli) == status


class StyledRows(CursorList[int]):
    """List with one row per style of a cell."""

    STYLES = (*sorted({each.style for each in _STATE_STYLES.values()}), *map(rank_style, range(RANK_HUES)), "", "bold")

    def row_id(self, row: int) -> int:
        return row

    def parts(self, row: int, width: int) -> Iterator[tuple[str, str]]:
        yield from ((f"cell{at} ", style) for at, style in enumerate(self.STYLES))


class ListsScreen(Screen[None]):
    """Screen with both kinds of lists."""

    def compose(self) -> ComposeResult:
        (rows := StyledRows()).set_rows([0])
        cells = [(f"cell{at} ", style) for at, style in enumerate(StyledRows.STYLES)]
        yield rows
        yield OptionRows(Option(Content.assemble(*cells)))


async def test_cells_of_the_cursor_row_are_readable_in_every_theme(app: SkywardApp) -> None:
    async with app.run_test(size=(160, 24)) as pilot:
        screen = ListsScreen()
        await app.push_screen(screen)
        for theme in app.available_themes.values():
            app.theme = theme.name
            for kind in (StyledRows, OptionRows):
                widget = screen.query_one(kind)
                if isinstance(widget, OptionRows):
                    widget.highlighted = 0
                widget.focus()
                await pilot.pause()
                cells = [each for each in widget.render_line(0) if "cell" in each.text]
                assert "".join(each.text for each in cells).count("cell") == len(StyledRows.STYLES)
                for each in cells:
                    assert each.style is not None and each.style.color is not None and each.style.bgcolor is not None
                    if theme.ansi:
                        assert each.style.color != each.style.bgcolor
                        continue
                    front, back = map(Color.from_rich_color, (each.style.color, each.style.bgcolor))
                    assert contrast(front, back) >= 4.5, (theme.name, kind, each)


async def test_bar_marks_the_focused_field_of_dialogs_and_prompts(app: SkywardApp, session: FakeSession) -> None:
    session.pool_with_run("p", 2)
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        for keys in (["slash"], ["escape", "V"], ["escape", "question_mark", "slash"]):
            await press(pilot, *keys, until=lambda: isinstance(app.focused, Input))
            assert app.focused is not None and app.focused.styles.border_left[0] == "outer", keys


@pytest.mark.proof("6 s of a processor")
async def test_bar_marks_the_focused_field_in_every_theme(app: SkywardApp, tmp_path: Path, proofs: bool) -> None:
    """WCAG 2.2 (1.4.11) requires a contrast of 3 to 1. Without proofs, one theme in three is tested."""
    (tmp_path / "train.py").write_text("")
    async with on_launch_form(app, (120, 40), "train.py") as (pilot, screen):
        fields: list[Widget] = [screen.query_one("#arguments", Input), screen.query_one("#provider", Select)]
        for theme in list(app.available_themes.values())[:: 1 if proofs else 3]:
            app.theme = theme.name
            for field in fields:
                field.focus()
                await pilot.pause()
                marks = {each: screen._compositor.render_strips()[each.region.y].crop(each.region.x) for each in fields}
                assert [each for each, strip in marks.items() if not strip.text.startswith(" ")] == [field], theme.name
                style = next(iter(marks[field])).style
                assert style is not None and style.color is not None and style.bgcolor is not None
                if theme.ansi:
                    assert style.color != style.bgcolor
                    continue
                front, back = map(Color.from_rich_color, (style.color, style.bgcolor))
                assert contrast(front, back) >= 3, (theme.name, field)
