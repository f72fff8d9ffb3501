"""Logs of a run: one rank, side by side, failed ranks only, times, and the editor at a traceback."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, RootCause
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_core.store.run_log_reader import LogRange, RunLogs
from skyward_core.tasks.function_pickling import make_task
from skyward_core.views.log_buffers_and_rank_activity import LogBuffers
from skyward_core.views.pool_view import RunView
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels import log_viewport_and_matching
from skyward_tui.panels.log import LogColumn
from skyward_tui.panels.log_pane import LogPane
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import on_run_screen, press, running_app, screen_text, typed, until
from tests.support.fake_session import NOW, FakeSession, failed_run
from tests.tui.conftest import log_of

PAINTS = True  # what is painted is looked at, or changes what a widget knows

SIZE = (160, 40)


def columns(screen: RunScreen) -> list[LogColumn]:
    return log_of(screen).panes.columns


def rows(column: LogColumn) -> list[str]:
    return [strip.text.rstrip() for strip in column.pane._rows]


async def beside(app: SkywardApp, pilot: Pilot[None], rank: int) -> None:
    await press(pilot, "V", until="Rank to show beside rank")
    await typed(app, pilot, str(rank))
    await pilot.press("enter")


@pytest.mark.proof("1 s of a processor")
async def test_logs_of_ranks_scroll_side_by_side_in_time(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("p", 4)
    for second in range(200):
        for rank in range(4):
            if rank != 3 or second % 3 == 0:
                session.print(view, rank, f"r{rank} second {second}\n", at=NOW + second + rank / 10)
    async with on_run_screen(app, SIZE) as (pilot, screen):
        await pilot.press("v")  # the next one
        await until(pilot, lambda: len(columns(screen)) == 2 and rows(columns(screen)[1])[-1:] == ["r1 second 199"])
        await beside(app, pilot, 3)
        await until(pilot, lambda: [column.rank for column in columns(screen)] == [0, 1, 3])
        third = columns(screen)[2]
        await until(pilot, lambda: app.focused is third.pane and screen.rank == 3)
        await until(pilot, lambda: "rank 3  · 3 ranks side by side" in str(log_of(screen).border_title))
        # What is done is done to the one that is looked at.
        await press(pilot, "p", until=lambda: not third.pane.is_following and columns(screen)[0].pane.is_following)
        for rank in range(4):
            session.print(view, rank, "one more\n", at=NOW + 200)
        await until(pilot, lambda: "PAUSED +1 line" in str(log_of(screen).border_title))
        await until(pilot, lambda: rows(columns(screen)[0])[-1] == "one more")
        assert rows(third)[-1] == "r3 second 198"
        await pilot.press("slash")
        await typed(app, pilot, "second 5.$")
        await press(pilot, "enter", until=lambda: third.pane.hit_count == 3 and not columns(screen)[0].pane.hit_count)
        await pilot.press("escape")
        # All at one time, by a key; whoever moves takes the others along.
        await pilot.press("i", "g")
        first = columns(screen)[0]
        await until(pilot, lambda: rows(first)[0] == "r0 second 1" and rows(third)[0] == "r3 second 0")
        await press(pilot, "down", "down", "down", until=lambda: rows(third)[0] == "r3 second 9")
        await until(pilot, lambda: rows(first)[0] == "r0 second 10")  # the first line that came after it
        await until(pilot, lambda: "aligned by time" in str(log_of(screen).border_title))
        await press(pilot, "f", until=lambda: first.pane.is_following and third.pane.is_following)
        # Away again: by esc, by its number, and the last one stays.
        await pilot.press("escape")
        await until(pilot, lambda: [column.rank for column in columns(screen)] == [0, 1] and screen.rank == 1)
        await beside(app, pilot, 1)
        await until(pilot, lambda: [column.rank for column in columns(screen)] == [0] and screen.rank == 0)
        session.print(view, 1, "rank 1 is about to fail\n")
        await press(pilot, "v", "left_square_bracket", until=lambda: screen.rank == 0)
        session.end_rank(view, run, 1, "raised", error=ErrorInfo("ValueError", "bad", "Traceback:\nValueError: bad\n"))
        session.end_run(view, run, "failed", RootCause(1, "raised", "ValueError", "bad"))
        await until(pilot, lambda: screen.rank == 1 and app.focused is columns(screen)[1].pane)
        assert "root cause: rank 1 on n1" in screen_text(app)
        session.open_run(view)
        await until(pilot, lambda: len(columns(screen)) == 1)


@pytest.mark.proof("1 s of a processor")
async def test_at_most_four_log_columns_are_shown(app: SkywardApp, session: FakeSession) -> None:
    session.pool_with_run("p", 6)
    async with on_run_screen(app, SIZE) as (pilot, screen):
        for _ in range(3):
            await pilot.press("v")
        await until(pilot, lambda: [column.rank for column in columns(screen)] == [0, 1, 2, 3])
        await press(pilot, "v", until="at most 4 logs fit")
        await beside(app, pilot, 9)
        await until(pilot, "rank 9 does not exist. Enter 0 to 5")
        await pilot.press("right_square_bracket")  # steps the one that is looked at, which was the last
        await until(pilot, lambda: [column.rank for column in columns(screen)] == [0, 1, 2, 4])
        await pilot.press("a")  # merged lines have all the place
        await until(pilot, lambda: sum(column.display for column in columns(screen)) == 1)


@pytest.mark.proof("0.5 s of a processor")
async def test_merged_log_can_show_only_failed_ranks(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 4)
    run = failed_run(session, view)
    for rank in range(4):
        session.print(view, rank, f"hello of {rank}\nbye of {rank}\n", run=run.id)
    async with on_run_screen(app, SIZE) as (pilot, screen):
        await pilot.press("M")
        column = columns(screen)[0]
        expected = [f"r00{rank}| {word} of {rank}" for rank in (2, 3) for word in ("hello", "bye")]
        await until(pilot, lambda: rows(column) == expected)
        assert "ranks with errors: r2 r3" in str(log_of(screen).border_title)
        await pilot.press("ampersand")
        await typed(app, pilot, "bye")
        await press(pilot, "enter", until=lambda: rows(column) == expected[1::2])
        await press(pilot, "escape", "M", until=lambda: len(rows(column)) == 8)


@pytest.mark.proof("1 s of a processor")
async def test_log_jumps_to_an_entered_time(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 1)
    for second in range(200):
        session.print(view, 0, f"second {second}\n", at=NOW + second)
    async with on_run_screen(app, SIZE) as (pilot, screen):
        column = columns(screen)[0]
        for text, top in (("-2m", "second 79"), ("08:01:40", "second 100")):  # NOW is at 08:00:00 UTC
            await pilot.press("T")
            await typed(app, pilot, text)
            await pilot.press("enter")
            await until(pilot, lambda top=top: rows(column)[:1] == [top])  # type: ignore[misc]
        await pilot.press("T")
        await typed(app, pilot, "noon")
        await press(pilot, "enter", until="invalid time noon. Enter 12:30, 12:30:05 or -5m")


async def test_editor_opens_the_line_of_the_traceback(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    async def run_in_terminal(app: SkywardApp, *command: str) -> None:
        started.append(command)

    monkeypatch.setattr("skyward_tui.ui.suspend_for_programs.run_in_terminal", run_in_terminal)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "vim -n")
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "model.py").write_text("pass\n")
    view, _ = session.pool_with_run("p", 1)
    lines = ('  File "/srv/copy/nets/model.py", line 7, in forward', '  File "/usr/lib/none.py", line 3, in f', "Error")
    session.print(view, 0, "\n".join(lines) + "\n")
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "O", until=lambda: started == [("vim", "-n", "+7", str(tmp_path / "nets" / "model.py"))])
        monkeypatch.delenv("EDITOR")
        monkeypatch.setattr("skyward_tui.source_lookup_and_editor._EDITORS", ())
        await press(pilot, "O", until="Set $EDITOR to open model.py:7")


async def test_pager_shows_the_whole_log(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, ...]] = []

    async def run_in_terminal(app: SkywardApp, *command: str) -> None:
        *words, file = command
        read.append((*words, Path(file).name, Path(file).read_text("utf-8")))
        assert Path(file).parent.stat().st_mode & 0o77 == 0, "nobody else can read it"

    monkeypatch.setattr("skyward_tui.ui.suspend_for_programs.run_in_terminal", run_in_terminal)
    monkeypatch.setenv("PAGER", "less -R")
    view, _ = session.pool_with_run("p", 2)
    for rank in range(2):
        session.print(view, rank, f"of {rank}\x1b]0;owned\x07\n" * 2)
    async with on_run_screen(app, SIZE, until="of 0") as (pilot, _):
        await pilot.press("right_square_bracket", "vertical_line")
        await until(pilot, lambda: read == [("less", "-R", "r001.log", "of 1\nof 1\n")])
        await pilot.press("a", "vertical_line")
        await until(pilot, lambda: len(read) == 2 and read[1][2] == "all.log" and "of 0" in read[1][3])
        monkeypatch.setenv("PAGER", "'")
        await press(pilot, "vertical_line", until="$PAGER is not a valid command")
    assert "\x1b" not in str(read)


async def test_mouse_wheel_scrolls_the_log(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 1)
    session.print(view, 0, "".join(f"line {number}\n" for number in range(200)))
    async with on_run_screen(app, SIZE, until="line 199") as (pilot, _):
        pane = app.screen.query_one(LogPane)
        place: dict[str, Any] = dict(x=1, y=1, delta_x=0, delta_y=0, button=0, shift=False, meta=False, ctrl=False)
        pane.post_message(events.MouseScrollUp(pane, **place))
        await until(pilot, lambda: "line 196" in screen_text(app) and "line 197" not in screen_text(app))
        pane.post_message(events.MouseScrollDown(pane, **place))
        await until(pilot, "line 199")


@pytest.mark.proof("1 s of a processor")
async def test_errors_screen_opens_the_editor(app: SkywardApp, session: FakeSession) -> None:
    failed_run(session, session.pool("p", 4))
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "e", until="ROOT CAUSE")
        await press(pilot, "O", until="no line here names a file of this machine")


# The log of a run on the run screen: its own lines and no others, all of them, with their times.


NARROWER = (120, 40)


def shown(screen: RunScreen) -> list[str]:
    return [strip.text.rstrip() for strip in log_of(screen).pane._rows]


class Kept(SimpleNamespace):
    """Stored files of a run, as the session provides them."""

    lines, batches = RunLogs.lines, RunLogs.batches


def keep(session: FakeSession, run: RunView, folder: Path, ranks: dict[int, str], end: bytes = b"") -> None:
    folder.mkdir(exist_ok=True)
    parts = {}
    for rank, text in ranks.items():
        (folder / f"r{rank:03d}.out").write_bytes(text.encode())
        parts[rank] = [LogRange(f"r{rank:03d}", (0, 0), (len(text.encode()), 0))]
    session.stored[run.id] = Kept(folder=folder, ranges=parts)


async def test_logs_of_runs_are_separate(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("p", 2)
    first = session.open_run(view)
    session.print(view, 0, "of the first\nunfinished")
    session.end_run(view, first)
    session.open_run(view)
    async with on_run_screen(app, NARROWER, until="nothing printed yet") as (pilot, screen):
        assert "of the first" not in screen_text(app) and "unfinished" not in screen_text(app)
        session.print(view, 0, "of the second\n")
        await until(pilot, lambda: shown(screen) == ["of the second"])
        await press(pilot, "left_curly_bracket", until=lambda: shown(screen) == ["of the first", "unfinished"])
        await press(pilot, "a", until=lambda: shown(screen) == ["r000| of the first", "r000| unfinished"])
        await press(pilot, "right_curly_bracket", until=lambda: shown(screen) == ["r000| of the second"])


async def test_log_of_a_run_without_buffered_lines_is_read_from_files(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    view = session.pool("p", 2)
    first = session.open_run(view)
    session.end_run(view, first)
    keep(session, first, tmp_path / "logs", {0: "kept\nto the last"})
    async with on_run_screen(app, NARROWER) as (pilot, screen):
        await until(pilot, lambda: shown(screen) == ["kept", "to the last"])


async def test_log_continues_in_files_beyond_the_ring(app: SkywardApp, session: FakeSession, tmp_path: Path) -> None:
    view = session.pool("p", 2)
    view.logs = LogBuffers(100)
    run = session.open_run(view)
    text = "".join(f"step {number}\n" for number in range(1_000))
    keep(session, run, tmp_path / "logs", {0: "", 1: ""})
    async with on_run_screen(app, NARROWER) as (pilot, screen):
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
        await press(pilot, "g", until=lambda: shown(screen)[:2] == ["step 0", "step 1"])
        await pilot.press("G")
        assert pane.is_following
        await pilot.press("slash")
        await typed(app, pilot, "step 7$")
        await press(pilot, "enter", until=lambda: pane.current_hit == 7 and "step 7" in shown(screen))
        await pilot.press("escape", "ampersand")
        await typed(app, pilot, "50$")
        await pilot.press("enter")
        await until(pilot, lambda: pane.window.filter is not None and len(pane.window.filter.numbers) == 10)
        await press(pilot, "f", until=lambda: shown(screen)[0] == "step 50" and shown(screen)[-1] == "step 950")
        await pilot.press("S")
        saved = Path(f"p-{run.id}-r000.log")
        await until(pilot, lambda: saved.exists() and saved.read_text() == text)


@pytest.mark.proof("1 s of a processor")
async def test_search_in_files_shows_its_progress(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = session.pool("p", 2)
    view.logs = LogBuffers(100)
    run = session.open_run(view)
    text = "".join(f"step {number}\n" for number in range(1_000))
    may_continue, search = threading.Semaphore(0), log_viewport_and_matching._matching_numbers
    cancelled: list[threading.Event] = []

    def search_when_allowed(*arguments: Any) -> list[int]:
        cancelled.append(is_cancelled := arguments[-1])
        # Cancelled searches must not use the permits of the current one.
        while not (is_cancelled.is_set() or may_continue.acquire(timeout=0.01)):
            pass
        return search(*arguments)

    monkeypatch.setattr(log_viewport_and_matching, "_matching_numbers", search_when_allowed)
    monkeypatch.setattr(log_viewport_and_matching, "SLICE_LINES", (250, 250))
    session.print(view, 0, text)
    keep(session, run, tmp_path / "logs", {0: text})
    async with on_run_screen(app, NARROWER) as (pilot, screen):
        await pilot.press("slash")
        await typed(app, pilot, "miss")
        await press(pilot, "enter", until="/miss 0 hits  searching 10 %")
        # esc cancels the search, and a later search replaces it.
        await press(pilot, "escape", until=lambda: not log_of(screen).pane.is_reading)
        assert "search" not in screen_text(app)
        await pilot.press("slash")
        await typed(app, pilot, "missi")
        await until(pilot, "/missi 0 hits  searching 10 %")
        await typed(app, pilot, "ng")
        await press(pilot, "enter", until="/missing 0 hits  searching 10 %")
        # A search also begins if enter comes later than the pause after typing.
        await until(pilot, lambda: [each.is_set() for each in cancelled][-3:] == [True, True, False])
        for done in ("searching 35 %", "searching 60 %", "searching 85 %"):
            may_continue.release()
            await until(pilot, done)
        may_continue.release()
        await until(pilot, lambda: "/missing 0 hits" in screen_text(app) and "search" not in screen_text(app))


def prints_much(lines: int, gate: str) -> None:
    for number in range(lines):
        print(f"step {number} {'needle' if number % 3_000 == 7 else ''}")
    while not Path(gate).exists():
        time.sleep(0.01)
    print("the last needle")


def hits(pane: LogPane) -> list[str]:
    """Return the numbers in the lines that the search has found."""
    search = pane.window.search
    assert search is not None and not search.begin
    return [line.text.split()[2] for at in search.numbers for line in pane.window.unfiltered(at, at + 1)]


async def test_search_covers_the_whole_merged_log_of_a_live_and_an_ended_run(tmp_path: Path) -> None:
    session, gate = Session(), tmp_path / "gate"
    options = Options(console=False)
    session.create(PoolSpec(name="much", provider=Local(), nodes=2, options=options)).result(90)
    run = session.launch("much", make_task(sky.function(prints_much)(9_000, str(gate)))).result(30)
    view = session.view("much")
    expected = sorted(f"{number}" for number in (7, 3_007, 6_007) for _ in range(2))
    try:
        async with on_run_screen(SkywardApp(Session), SIZE) as (pilot, screen):
            pane = log_of(screen).pane
            await press(pilot, "a", until=lambda: pane.window.ring.end == 18_000)
            await press(pilot, "slash", *"needle", until="/needle 6/6")
            await press(pilot, "enter", until=lambda: pane.has_focus and not pane.is_reading)
            assert sorted(hits(pane)) == expected
            await press(pilot, "n", until="n N match 1/6")
            gate.touch()
            await until(pilot, "n N match 1/8")
            await press(pilot, "N", until="n N match 8/8")
        session.wait("much", run.id).result(60)
    finally:
        gate.touch()
        session.tear_down("much").result(90)
        session.detach()
    app = SkywardApp(Session)
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        app.show_run(view.key, run.id)
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and "DONE" in screen_text(app))
        await press(pilot, "a", "slash", *"needle", "enter", until="/needle 8/8")
        pane = log_of(app.screen).pane
        await until(pilot, lambda: not pane.is_reading)
        assert sorted(hits(pane)[:6]) == expected and hits(pane)[6:] == ["last", "last"]


async def test_missing_log_lines_are_replaced_by_a_row(app: SkywardApp, session: FakeSession, tmp_path: Path) -> None:
    view = session.pool("p", 2)
    view.logs = LogBuffers(100)
    run = session.open_run(view)
    text = "".join(f"step {number}\n" for number in range(1_000))
    session.print(view, 0, text)
    async with on_run_screen(app, NARROWER) as (pilot, screen):
        await pilot.press("g")
        gap = "⋯ 900 lines omitted: no run 'p-1' in the ledger"
        await until(pilot, lambda: shown(screen)[0] == gap and shown(screen)[1] == "step 900")
        await press(pilot, "a", "g", until=lambda: shown(screen)[0] == gap)
        await pilot.press("slash")
        await typed(app, pilot, "step 99")
        await press(pilot, "enter", until="/step 99 10/10  searched the last 100 lines")
        await pilot.press("escape")
        # Files that ended before the ring begins leave a gap in the middle, which goes when they hold more.
        await pilot.press("a", "f")
        keep(session, run, tmp_path / "logs", {0: text[: text.index("step 850\n")]})
        await press(pilot, "g", until=lambda: shown(screen)[0] == "step 0")
        pane = log_of(screen).pane
        pane.top = (845, 0)
        pane._repaint()
        await until(pilot, lambda: "⋯ 50 lines omitted: not available" in shown(screen))
        assert [shown(screen)[place] for place in (4, 6)] == ["step 849", "step 900"]
        keep(session, run, tmp_path / "logs", {0: text})
        pane._gap_checked_at = -math.inf  # it does not look every time that it paints
        pane._repaint()
        await until(pilot, lambda: shown(screen)[5] == "step 850")


async def test_stderr_lines_have_their_own_style_and_a_key_shows_times(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("p", 2)
    session.print(view, 0, "fine\n", at=NOW + 1.25)
    session.print(view, 0, "not fine\n", "err", at=NOW + 2.5)
    async with on_run_screen(app, NARROWER) as (pilot, screen):
        pane = log_of(screen).pane
        await until(pilot, lambda: shown(screen) == ["fine", "not fine"])
        styles = [strip._segments[0].style for strip in pane._rows]
        assert [bool(style and style.italic) for style in styles] == [False, True]
        assert styles[0] is not None and styles[1] is not None and styles[0].color != styles[1].color
        await press(pilot, "t", until=lambda: shown(screen) == ["08:00:01.25 fine", "08:00:02.50 not fine"])
        await press(pilot, "t", until=lambda: shown(screen) == ["fine", "not fine"])
