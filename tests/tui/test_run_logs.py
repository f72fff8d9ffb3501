"""The log of a run on the run screen: its own lines and no others, all of them, with their times."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

from textual.pilot import Pilot

from skyward_core.store.run_logs import LogRange, RunLogs
from skyward_core.views.log_buffer import LogBuffers
from skyward_core.views.pool_view import RunView
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import screen_text, typed, until
from tests.support.fake_session import NOW, FakeSession
from tests.tui.conftest import log_of

PAINTS = True  # what is painted is looked at, or changes what a widget knows

SIZE = (120, 40)


async def opened(app: SkywardApp, pilot: Pilot[None]) -> RunScreen:
    await until(pilot, lambda: "▶" in screen_text(app))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, RunScreen)
    return app.screen


def shown(screen: RunScreen) -> list[str]:
    return [strip.text.rstrip() for strip in log_of(screen).pane._rows]


class Kept(SimpleNamespace):
    """Files of a run, as the session gives them."""

    lines, batches = RunLogs.lines, RunLogs.batches


def keep(session: FakeSession, run: RunView, folder: Path, ranks: dict[int, str], end: bytes = b"") -> None:
    folder.mkdir(exist_ok=True)
    parts = {}
    for rank, text in ranks.items():
        (folder / f"r{rank:03d}.out").write_bytes(text.encode())
        parts[rank] = [LogRange(f"r{rank:03d}", (0, 0), (len(text.encode()), 0))]
    session.stored[run.id] = Kept(folder=folder, ranges=parts)


async def test_runs_keep_their_lines_apart(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    first = session.open_run(view)
    session.print(view, 0, "of the first\nunfinished")
    session.end_run(view, first)
    session.open_run(view)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        await until(pilot, lambda: "nothing printed yet" in screen_text(app))
        assert "of the first" not in screen_text(app) and "unfinished" not in screen_text(app)
        session.print(view, 0, "of the second\n")
        await until(pilot, lambda: shown(screen) == ["of the second"])
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: shown(screen) == ["of the first", "unfinished"])
        await pilot.press("a")
        await until(pilot, lambda: shown(screen) == ["r000| of the first", "r000| unfinished"])
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: shown(screen) == ["r000| of the second"])


async def test_a_run_of_which_no_lines_are_held_is_read_from_its_files(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    view = session.pool("p", 2)
    first = session.open_run(view)
    session.end_run(view, first)
    keep(session, first, tmp_path / "logs", {0: "kept\nto the last"})
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        await until(pilot, lambda: shown(screen) == ["kept", "to the last"])


async def test_beyond_the_ring_the_files_go_on(app: SkywardApp, session: FakeSession, tmp_path: Path) -> None:
    view = session.pool("p", 2)
    view.logs = LogBuffers(100)
    run = session.open_run(view)
    text = "".join(f"step {number}\n" for number in range(1_000))
    keep(session, run, tmp_path / "logs", {0: "", 1: ""})
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        pane = log_of(screen).pane
        await until(pilot, lambda: pane.window.stored is not None)  # it had a look when nothing was there yet
        session.print(view, 0, text)
        session.print(view, 1, text)
        keep(session, run, tmp_path / "logs", {0: text, 1: text})
        await until(pilot, lambda: shown(screen)[-1:] == ["step 999"])
        height = pane.size.height
        for page in range(1, 6):  # each is read before the next is asked for
            await pilot.press("pageup")
            top = f"step {999 - page * (height - 1) - height + 1}"
            await until(pilot, lambda top=top: shown(screen)[:1] == [top])  # type: ignore[misc]
        await pilot.press("g")
        await until(pilot, lambda: shown(screen)[:2] == ["step 0", "step 1"])
        await pilot.press("G")
        assert pane.is_following
        await pilot.press("slash")
        await typed(app, pilot, "step 7$")
        await pilot.press("enter")
        await until(pilot, lambda: pane.current_hit == 7 and "step 7" in shown(screen))
        await pilot.press("escape", "ampersand")
        await typed(app, pilot, "50$")
        await pilot.press("enter")
        await until(pilot, lambda: pane.window.filter is not None and len(pane.window.filter.numbers) == 10)
        await pilot.press("f")
        await until(pilot, lambda: shown(screen)[0] == "step 50" and shown(screen)[-1] == "step 950")
        await pilot.press("S")
        saved = Path(f"p-{run.id}-r000.log")
        await until(pilot, lambda: saved.exists() and saved.read_text() == text)


async def test_lines_that_are_not_here_are_a_row_that_says_so(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    view = session.pool("p", 2)
    view.logs = LogBuffers(100)
    run = session.open_run(view)
    text = "".join(f"step {number}\n" for number in range(1_000))
    session.print(view, 0, text)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("g")
        gap = "⋯ 900 lines before this: no run 'p-1' in the ledger"
        await until(pilot, lambda: shown(screen)[0] == gap and shown(screen)[1] == "step 900")
        await pilot.press("a", "g")
        await until(pilot, lambda: "[ and ] show each rank from its first line" in shown(screen)[0])
        await pilot.press("slash")
        await typed(app, pilot, "step 99")
        await pilot.press("enter")
        await until(pilot, lambda: "10 hits  in the last 100 lines only" in screen_text(app))
        await pilot.press("escape")
        # Files that ended before the ring begins leave a gap in the middle, which goes when they hold more.
        await pilot.press("a", "f")
        keep(session, run, tmp_path / "logs", {0: text[: text.index("step 850\n")]})
        await pilot.press("g")
        await until(pilot, lambda: shown(screen)[0] == "step 0")
        pane = log_of(screen).pane
        pane.top = (845, 0)
        pane._repaint()
        await until(pilot, lambda: "⋯ 50 lines before this: not held here" in shown(screen))
        assert [shown(screen)[place] for place in (4, 6)] == ["step 849", "step 900"]
        keep(session, run, tmp_path / "logs", {0: text})
        pane._looked_at = -math.inf  # it does not look every time that it paints
        pane._repaint()
        await until(pilot, lambda: shown(screen)[5] == "step 850")


async def test_errors_look_different_and_times_show_on_a_key(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    session.open_run(view)
    session.print(view, 0, "fine\n", at=NOW + 1.25)
    session.print(view, 0, "not fine\n", "err", at=NOW + 2.5)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        pane = log_of(screen).pane
        await until(pilot, lambda: shown(screen) == ["fine", "not fine"])
        styles = [strip._segments[0].style for strip in pane._rows]
        assert [bool(style and style.italic) for style in styles] == [False, True]
        assert styles[0] is not None and styles[1] is not None and styles[0].color != styles[1].color
        await pilot.press("t")
        await until(pilot, lambda: shown(screen) == ["08:00:01.25 fine", "08:00:02.50 not fine"])
        await pilot.press("t")
        await until(pilot, lambda: shown(screen) == ["fine", "not fine"])
