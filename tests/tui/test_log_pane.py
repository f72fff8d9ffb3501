"""The log pane on a screen of its own, by keys."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from skyward_core.views.log_buffer import LogRing
from skyward_tui.panels.log_pane import LogPane, Matcher

PAINTS = True  # what is painted is looked at, or changes what a widget knows

SIZE = (40, 10)


class PaneApp(App[None]):
    def __init__(self, ring: LogRing) -> None:
        super().__init__()
        self.ring = ring

    def compose(self) -> ComposeResult:
        yield LogPane()

    def on_mount(self) -> None:
        self.pane.focus()
        self.pane.show(self.ring)

    @property
    def pane(self) -> LogPane:
        return self.query_one(LogPane)


def rows(app: PaneApp) -> list[str]:
    return [strip.text.rstrip() for strip in app.pane._rows]


async def settle(app: PaneApp, pilot: Pilot[None]) -> list[str]:
    app.pane.repaint_if_changed()
    await pilot.pause()
    return rows(app)


def feed(ring: LogRing, start: int, stop: int) -> None:
    ring.feed("".join(f"line {i}\n" for i in range(start, stop)).encode())


async def test_follows_the_newest_line() -> None:
    ring = LogRing(1000)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        feed(ring, 0, 5)
        assert await settle(app, pilot) == [f"line {i}" for i in range(5)]
        feed(ring, 5, 50)
        assert await settle(app, pilot) == [f"line {i}" for i in range(40, 50)]


async def test_eviction_never_moves_the_reader() -> None:
    ring = LogRing(100)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        feed(ring, 0, 90)
        await settle(app, pilot)
        await pilot.press("up", "k", "pageup")
        seen = await settle(app, pilot)
        assert seen == [f"line {i}" for i in range(69, 79)]
        feed(ring, 90, 5_000)
        assert await settle(app, pilot) == seen
        assert app.pane.lines_behind == 5_000 - 79
        await pilot.press("j")
        assert await settle(app, pilot) == [f"line {i}" for i in range(70, 80)]
        await pilot.press("end")
        assert (await settle(app, pilot))[-1] == "line 4999"
        assert app.pane.is_following


async def test_reaching_the_end_follows_again() -> None:
    ring = LogRing(100)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        feed(ring, 0, 30)
        await settle(app, pilot)
        await pilot.press("up", "up")
        assert not app.pane.is_following
        await pilot.press("down", "down")
        assert app.pane.is_following
        await pilot.press("g")
        assert (await settle(app, pilot))[0] == "line 0"
        await pilot.press("G")
        assert (await settle(app, pilot))[-1] == "line 29"


async def test_wrapped_lines_scroll_by_row() -> None:
    ring = LogRing(100)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        ring.feed(("x" * 100 + "END\n").encode() * 10)
        app.pane.wrap = True
        assert (await settle(app, pilot))[-1] == "x" * 20 + "END"
        await pilot.press("up")
        assert (await settle(app, pilot))[-1] == "x" * 40
        app.pane.wrap = False
        assert all(len(row) == 40 for row in await settle(app, pilot))
        await pilot.press("l")
        await pilot.press(*["l"] * 5)
        assert (await settle(app, pilot))[0].endswith("END")


async def test_progress_bars_show_as_the_last_row() -> None:
    ring = LogRing(100)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        ring.feed(b"start\n 10%|#\r 20%|##")
        ring.feed(b"warn", "err")
        assert await settle(app, pilot) == ["start", " 20%|##", "warn"]
        ring.feed(b"\r100%|####\n")
        assert await settle(app, pilot) == ["start", "100%|####", "warn"]


async def test_filter_and_search_on_screen() -> None:
    ring = LogRing(1000)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        feed(ring, 0, 200)
        await settle(app, pilot)
        app.pane.set_filter(Matcher.parse("9$"))
        assert await settle(app, pilot) == [f"line {i}" for i in range(109, 200, 10)]
        app.pane.set_filter(None)
        app.pane.set_search(Matcher.parse("line 50$"))
        assert "line 50" in await settle(app, pilot)
        assert app.pane.current_hit == 50 and not app.pane.is_following


async def test_wide_characters_and_escapes_fit() -> None:
    ring = LogRing(100)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        ring.feed(("漢字" * 30 + "\n").encode())
        ring.feed(b"\x1b[2J\x1b]52;c;QUJD\x07\xff\xfe binary \x01\n")
        await settle(app, pilot)
        assert [strip.cell_length <= 40 for strip in app.pane._rows] == [True, True]
        assert rows(app)[1] == "�� binary �"


async def test_no_paint_while_paused() -> None:
    ring = LogRing(100)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        feed(ring, 0, 50)
        await settle(app, pilot)
        app.pane.action_pause()
        await pilot.pause()
        painted: list[bool] = []
        app.pane.refresh = lambda *a, **k: painted.append(True) or app.pane  # type: ignore[assignment,method-assign,func-returns-value]
        feed(ring, 50, 90)
        assert app.pane.repaint_if_changed() and not painted
        assert not app.pane.repaint_if_changed()
