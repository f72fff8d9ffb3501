"""Every theme can paint every screen, and a crash shows in the exit status."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from textual.style import Style

from skyward_tui import cli
from skyward_tui.app import SkywardApp
from tests.support.app_driver import screen_text, until
from tests.support.every_screen import every_screen
from tests.support.fake_session import FakeSession

PAINTS = True  # what is painted is looked at, or changes what a widget knows

PACKAGE = Path(cli.__file__).parent


def test_every_kind_of_screen_is_tried(session: FakeSession) -> None:
    made = {type(make()) for make in every_screen(session)}
    for path in (*(PACKAGE / "screens").glob("*.py"), *(PACKAGE / "dialogs").glob("*.py")):
        text = path.read_text("utf-8")
        names = {line.split()[1].partition("(")[0] for line in text.splitlines() if line.startswith("class ")}
        for name in names - {"BaseScreen"}:
            if name.endswith("Screen"):
                assert name in {kind.__name__ for kind in made}, name


async def test_all_themes_paint_all_screens(app: SkywardApp, session: FakeSession) -> None:
    """A change of theme parses the styles of all screens that were ever mounted, which takes most of the time; so
    they are mounted all, and each theme then paints some of them, in turn, on a small terminal: most of the rest is
    taken by the cells that are painted. What a screen's text may name of a theme is tried for every theme below."""
    screens = [make() for make in every_screen(session)]
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session is not None)
        for place, screen in enumerate(screens):
            app.install_screen(screen, str(place))
            await app.push_screen(str(place))
            await pilot.pause()
            app.pop_screen()
        turn = itertools.cycle(range(len(screens)))
        for theme in app.available_themes:
            app.theme = theme
            for place in itertools.islice(turn, 2):
                await app.push_screen(str(place))
                await pilot.pause()
                assert screen_text(app).strip(), theme
                app.pop_screen()
            assert app.is_running, theme


async def test_every_colour_that_is_named_is_one_in_every_theme(app: SkywardApp) -> None:
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


def test_style_sheets_are_files() -> None:
    """Those of screens, panels, dialogs and widgets."""
    sheets = [
        (path.name, value)
        for path in PACKAGE.rglob("*.py")
        for value in re.findall(r"\bDEFAULT_CSS(?::[^=]*)? = (.*)", path.read_text("utf-8"))
    ]
    assert len(sheets) > 10
    assert [each for each in sheets if not each[1].startswith("beside(__file__")] == []


def test_an_app_that_crashes_says_so_in_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    class Headless(SkywardApp):
        def run(self, **options: Any) -> None:
            super().run(headless=True)

    class Crashing(Headless):
        def on_mount(self) -> None:
            raise RuntimeError("boom")

    class Fine(Headless):
        def on_mount(self) -> None:
            self.set_timer(0.2, self.exit)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for kind, status in ((Crashing, 1), (Fine, 0)):
        monkeypatch.setattr("skyward_tui.app.SkywardApp", kind)
        with click.Context(cli.cli) as context:
            assert context.invoke(cli.cli) == status
