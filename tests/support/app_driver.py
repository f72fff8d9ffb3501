"""Driver of the app in this process: waits for the screen, typing, and the screen as text or picture."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual import events
from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual.css.stylesheet import Stylesheet
from textual.css.tokenize import tokenize_values
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Collapsible

from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.launch import LaunchScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.widgets.screen_frame_and_replay_line import Chrome

PATIENCE = 60.0
TOKENS: dict[frozenset[tuple[str, str]], Any] = {}  # of the values of colours
PARSED: dict[frozenset[tuple[str, str]], dict[Any, Any]] = {}  # style sheets, by their colours


USUAL = [(80, 24), (160, 48), (120, 40)]
SMALLEST = (60, 15)
SIZES = [*USUAL, SMALLEST, (240, 70)]
AS_TEXT = ("60x15", "240x70")  # sizes of which colours are not compared: they are those of the others
Size = tuple[int, int]  # columns and rows of a terminal
Snap = Callable[[SkywardApp, str], None]


def at_every_size(test: Any) -> Any:
    """Parametrize a test over five screen sizes. All but the first are proofs."""
    return _second(_at(SIZES, test))


def at_every_size_daily(test: Any) -> Any:
    """Parametrize a test over five screen sizes without proofs, for screens whose layout differs by size."""
    return _at(SIZES, test)


def at_usual_sizes(test: Any) -> Any:
    """Parametrize a test over three screen sizes that have room for the tested part. All but the first are proofs."""
    return _second(_at(USUAL, test))


def _at(sizes: list[Size], test: Any) -> Any:
    return pytest.mark.parametrize("size", sizes, ids=lambda size: f"{size[0]}x{size[1]}")(test)


def _second(sized: Any) -> Any:
    return pytest.mark.proof("0.5 s of a processor", after=1)(sized)


async def settled(*_: float) -> None:
    """Let the app finish all pending work, including painting. Replaces Textual's ``wait_for_idle``.

    Textual's function waits for 20 ms of low CPU use, twice for each key, and longer on a busy machine.
    """
    loop: Any = asyncio.get_running_loop()
    screens = active_app.get()._screen_stack
    quiet = 0
    while quiet < 3:
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1
        if quiet == 1 and screens:
            screens[-1]._on_timer_update()  # paints what is to be painted, then calls who waits for that


def ask_who_is_busy(patch: pytest.MonkeyPatch) -> None:
    """Patch pilots to wait only for widgets that are working, until the patch is undone.

    Textual waits for each of hundreds of widgets after every key, which took a third of the time of the app's tests.
    """
    wait_for_screen = Pilot._wait_for_screen

    async def waited(self: Pilot[Any], *more: float) -> bool:
        await settled()
        screens = self.app._screen_stack
        if screens and all(map(_is_at_rest, (self.app, *screens[-1].walk_children(with_self=True)))):
            return True
        return await wait_for_screen(self, *more)

    patch.setattr(Pilot, "_wait_for_screen", waited)


def _is_at_rest(pump: MessagePump) -> bool:
    """Check whether a widget waits for a message and has none."""
    queue: Any = pump._message_queue
    return bool(pump._closing or (queue.empty() and queue.ready_event._waiters))


def paint_on_demand(patch: pytest.MonkeyPatch) -> None:
    """Patch the app to paint only when a test reads the screen, until the patch is undone.

    Textual paints each change, also without a terminal, which takes a third of the time of an app's test.
    """
    render_update = Compositor.render_update

    def render(self: Compositor, full: bool = False, screen_stack: Any = None, simplify: bool = False) -> Any:
        if full:
            return render_update(self, full, screen_stack, simplify)
        visible_screen_stack.set(screen_stack or [])
        self._dirty_regions.clear()
        return None

    patch.setattr(Compositor, "render_update", render)


class NoCache:
    """Cache that stores nothing."""

    def get(self, key: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...


def cut_anew(patch: pytest.MonkeyPatch) -> None:
    """Disable the seven caches of each strip of a screen until the patch is undone. They only help while a user
    scrolls, and take a tenth of the time of an app's test.
    """
    none = NoCache()
    patch.setattr("textual.strip.FIFOCache", lambda size: none)


def parse_once(patch: pytest.MonkeyPatch) -> None:
    """Parse each style sheet once for all apps of this process with the same colours, until the patch is undone."""
    parse = Stylesheet._parse_rules

    def tokens(values: dict[str, str]) -> Any:
        key = frozenset(values.items())
        if key not in TOKENS:
            TOKENS[key] = tokenize_values(values)
        return TOKENS[key]

    def parsed(self: Any, *sheet: Any, **more: Any) -> Any:
        if getattr(self, "_coloured", (None,))[0] is not self._variables:
            self._coloured = self._variables, PARSED.setdefault(frozenset(self._variables.items()), {})
        of_colours = self._coloured[1]
        key = (sheet, *more.items())
        if (rules := of_colours.get(key)) is None:
            rules = of_colours[key] = parse(self, *sheet, **more)
        return rules

    patch.setattr(Stylesheet, "_parse_rules", parsed)
    for module in ("textual.css.stylesheet", "textual.markup"):
        patch.setattr(f"{module}.tokenize_values", tokens)


async def until(pilot: Pilot[Any], true: str | Callable[[], bool]) -> None:
    """Run the app until the screen shows a text or a condition holds, and its consequences are processed, such as the
    first layout of a screen. The timeout is only a deadline.
    """
    deadline = time.monotonic() + PATIENCE
    wait = 0.02
    await pilot.pause()
    while not (true() if callable(true) else true in screen_text(pilot.app)):  # type: ignore[arg-type]
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true; the screen was\n{screen_text(pilot.app)}")  # type: ignore[arg-type]
        await asyncio.sleep(wait)
        await pilot.pause()
        wait = min(wait * 1.3, 0.2)
    await pilot.pause()


async def press(pilot: Pilot[Any], *keys: str, until: str | Callable[[], bool]) -> None:
    """Press keys and wait for a text on the screen, or for a condition."""
    await pilot.press(*keys)
    await _until(pilot, until)


_until = until


async def typed(app: Any, pilot: Pilot[Any], text: str, until: str | Callable[[], bool] = "") -> None:
    """Paste text in one event, like a terminal, and wait for a condition."""
    if text:
        app.post_message(events.Paste(text))
        await pilot.pause()
    await _until(pilot, until)


async def open_pool(app: SkywardApp, pilot: Pilot[Any], key: str = "") -> RunScreen:
    """Open the run screen of the pool with a key, or, by Enter, of the pool under the cursor of the list."""
    if key:
        app.show_pool(key)
    else:
        await until(pilot, "▶")
        await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, RunScreen)
    return app.screen


async def launch_form(app: SkywardApp, pilot: Pilot[Any], script: str) -> LaunchScreen:
    """Open the launch form by its key, and fill in the path of a script."""
    await until(pilot, lambda: app.session is not None)
    await pilot.press("n")
    await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, LaunchScreen)
    await typed(app, pilot, script)
    return app.screen


@asynccontextmanager
async def running_app(app: SkywardApp, size: Size, until: str | Callable[[], bool]) -> AsyncIterator[Pilot[Any]]:
    """Run the app and wait for a text on the screen, or for a condition."""
    async with app.run_test(size=size) as pilot:
        await _until(pilot, until)
        yield pilot


@asynccontextmanager
async def on_run_screen(
    app: SkywardApp, size: Size, key: str = "", *, until: str | Callable[[], bool] = ""
) -> AsyncIterator[tuple[Pilot[Any], RunScreen]]:
    """Run the app with the run screen of a pool open: the pool with that key, or the one under the cursor."""
    async with app.run_test(size=size) as pilot:
        screen = await open_pool(app, pilot, key)
        await _until(pilot, until)
        yield pilot, screen


@asynccontextmanager
async def on_launch_form(
    app: SkywardApp, size: Size, script: str, *, until: str | Callable[[], bool] = ""
) -> AsyncIterator[tuple[Pilot[Any], LaunchScreen]]:
    """Run the app with the launch form open for a script."""
    async with app.run_test(size=size) as pilot:
        screen = await launch_form(app, pilot, script)
        await _until(pilot, until)
        yield pilot, screen


async def focus_in_section(pilot: Pilot[Any], screen: Screen[Any], section: str, field: str) -> None:
    """Expand a section of the launch form, and focus one of its fields."""
    screen.query_one(f"#{section}", Collapsible).collapsed = False
    await pilot.pause()
    screen.query_one(f"#{field}").focus()


def previewed(app: SkywardApp) -> bool:
    """Check whether the preview of the pool under the cursor is shown, if there is room. It appears one frame after the
    list.
    """
    return app.size.width < 120 or " ranks: " in screen_text(app)


def screen_text(app: SkywardApp) -> str:
    """Return the screen as lines of text."""
    # Else a dialog that nobody has painted here would have nothing to lie over, and keep that.
    visible_screen_stack.set(app._background_screens)
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


def filled_share(app: SkywardApp) -> float:
    """Return the share of the area between breadcrumbs and hint line that carries information.

    A row of a panel counts with the panel's whole width if it is not blank. Borders do not count.
    """
    lines = screen_text(app).splitlines()
    filled = 0
    for widget, (region, visible) in app.screen._compositor.visible_widgets.items():
        area = region.intersection(visible).intersection(widget.content_region)
        if not isinstance(widget, Chrome) and not any(child.display for child in widget.children):
            filled += sum(area.width for y in range(area.y, area.bottom) if lines[y][area.x : area.right].strip())
    return filled / (app.size.width * (app.size.height - 2))


def screen_svg(app: SkywardApp) -> str:
    """Return the screen as SVG, without the ids that differ between runs."""
    return re.sub(r"terminal-\d+-", "terminal-", app.export_screenshot(title="skyward-tui"))
