"""The log pane and its viewport: the reader's position, filters and searches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from skyward_core.store.run_log_reader import LogRange, StoredLines, ring_tail
from skyward_core.views.log_buffers_and_rank_activity import Line, LogRing
from skyward_tui.panels.log_pane import LogPane
from skyward_tui.panels.log_viewport_and_matching import LogViewport, Matcher, search_earlier, search_files

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


@asynccontextmanager
async def running_pane(capacity: int) -> AsyncIterator[tuple[PaneApp, LogRing, Pilot[None]]]:
    ring = LogRing(capacity)
    app = PaneApp(ring)
    async with app.run_test(size=SIZE) as pilot:
        yield app, ring, pilot


def rows(app: PaneApp) -> list[str]:
    return [strip.text.rstrip() for strip in app.pane._rows]


async def settle(app: PaneApp, pilot: Pilot[None]) -> list[str]:
    app.pane.repaint_if_changed()
    await pilot.pause()
    return rows(app)


def feed(ring: LogRing, start: int, stop: int) -> None:
    ring.feed("".join(f"line {i}\n" for i in range(start, stop)).encode())


async def test_log_pane_follows_the_newest_line() -> None:
    async with running_pane(1000) as (app, ring, pilot):
        feed(ring, 0, 5)
        assert await settle(app, pilot) == [f"line {i}" for i in range(5)]
        feed(ring, 5, 50)
        assert await settle(app, pilot) == [f"line {i}" for i in range(40, 50)]


async def test_evicted_lines_do_not_move_the_view() -> None:
    async with running_pane(100) as (app, ring, pilot):
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


async def test_log_pane_follows_again_at_the_end() -> None:
    async with running_pane(100) as (app, ring, pilot):
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
    async with running_pane(100) as (app, ring, pilot):
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


async def test_progress_bar_is_the_last_row() -> None:
    async with running_pane(100) as (app, ring, pilot):
        ring.feed(b"start\n 10%|#\r 20%|##")
        ring.feed(b"warn", "err")
        assert await settle(app, pilot) == ["start", " 20%|##", "warn"]
        ring.feed(b"\r100%|####\n")
        assert await settle(app, pilot) == ["start", "100%|####", "warn"]


async def test_log_pane_filters_and_searches() -> None:
    async with running_pane(1000) as (app, ring, pilot):
        feed(ring, 0, 200)
        await settle(app, pilot)
        app.pane.set_filter(Matcher.parse("9$"))
        assert await settle(app, pilot) == [f"line {i}" for i in range(109, 200, 10)]
        app.pane.set_filter(None)
        app.pane.set_search(Matcher.parse("line 50$"))
        assert "line 50" in await settle(app, pilot)
        assert app.pane.current_hit == 50 and not app.pane.is_following


async def test_wide_characters_fit_and_escapes_are_removed() -> None:
    async with running_pane(100) as (app, ring, pilot):
        ring.feed(("漢字" * 30 + "\n").encode())
        ring.feed(b"\x1b[2J\x1b]52;c;QUJD\x07\xff\xfe binary \x01\n")
        await settle(app, pilot)
        assert [strip.cell_length <= 40 for strip in app.pane._rows] == [True, True]
        assert rows(app)[1] == "�� binary �"


async def test_paused_log_pane_is_not_painted() -> None:
    async with running_pane(100) as (app, ring, pilot):
        feed(ring, 0, 50)
        await settle(app, pilot)
        app.pane.action_pause()
        await pilot.pause()
        painted: list[bool] = []
        app.pane.refresh = lambda *a, **k: painted.append(True) or app.pane  # type: ignore[assignment,method-assign,func-returns-value]
        feed(ring, 50, 90)
        assert app.pane.repaint_if_changed() and not painted
        assert not app.pane.repaint_if_changed()


def ring_of(count: int, capacity: int = 100) -> LogRing:
    ring = LogRing(capacity)
    ring.extend([f"line {i}" for i in range(count)])
    return ring


def numbers(lines: list[Line]) -> list[int]:
    assert all(line.text == f"line {line.number}" for line in lines)
    return [line.number for line in lines]


def test_viewport_returns_lines_before_and_after_a_number() -> None:
    window = LogViewport(ring_of(50))
    assert numbers(window.lines_after(10, 3)) == [10, 11, 12]
    assert numbers(window.lines_before(10, 3)) == [7, 8, 9]
    assert numbers(window.lines_before(2, 5)) == [0, 1]
    assert numbers(window.lines_after(48, 5)) == [48, 49]
    assert window.count_newer(47) == 2


def test_viewport_omits_evicted_lines() -> None:
    window = LogViewport(ring_of(250))
    assert window.first == 150
    assert numbers(window.lines_after(0, 2)) == [150, 151]
    assert numbers(window.lines_before(151, 5)) == [150]


def test_frozen_lines_outlive_the_ring() -> None:
    ring = ring_of(100)
    window = LogViewport(ring)
    window.freeze()
    ring.extend([f"line {i}" for i in range(100, 500)])
    assert window.first == 0
    assert numbers(window.lines_after(20, 3)) == [20, 21, 22]
    # Past what was held the reader goes on at the oldest line the ring has, and back again.
    assert numbers(window.lines_after(98, 4)) == [98, 99, 400, 401]
    assert numbers(window.lines_before(401, 3)) == [98, 99, 400]
    window.unfreeze()
    assert numbers(window.lines_after(20, 1)) == [400]


def stored(folder: Path, count: int) -> StoredLines:
    data = "".join(f"line {i}\n" for i in range(count)).encode()
    (folder / "r000.out").write_bytes(data)
    return StoredLines(folder, [LogRange("r000", (0, 0), (len(data), 0))], whole=True)


def test_viewport_reads_lines_before_the_ring_from_files(tmp_path: Path) -> None:
    ring = LogRing(100)
    ring.extend([f"line {i}" for i in range(1_000, 1_500)])  # this client came when there were 1,000
    window = LogViewport(ring)
    window.set_filter(Matcher.parse("line 14.5$"))
    assert [line.number for line in window.lines_after(0, 3)] == [405, 415, 425]
    files = stored(tmp_path, 1_450)
    assert window.open_files(files, files.find_ring_offset(*ring_tail(ring))) == 950
    ring.extend([])
    assert (window.first, window.end) == (0, 1_450)
    window.set_filter(None)
    window.open_files(files, 1_000)
    assert (window.first, window.end) == (0, 1_500)
    assert numbers(window.lines_before(1_402, 4)) == [1_398, 1_399, 1_400, 1_401]
    assert numbers(window.lines_after(1_399, 3)) == [1_399, 1_400, 1_401]
    assert numbers(window.lines_after(0, 2)) == [0, 1]
    ring.extend([f"line {i}" for i in range(1_500, 1_600)])  # what lies between is nowhere: a gap in the numbers
    assert numbers(window.lines_after(1_448, 4)) == [1_448, 1_449, 1_500, 1_501]
    assert numbers(window.lines_before(1_501, 3)) == [1_448, 1_449, 1_500]


def test_frozen_lines_and_files_fill_the_gaps_of_each_other(tmp_path: Path) -> None:
    ring = ring_of(250)
    window = LogViewport(ring)
    window.freeze()
    ring.extend([f"line {i}" for i in range(250, 500)])
    assert numbers(window.lines_after(248, 4)) == [248, 249, 400, 401]
    window.open_files(stored(tmp_path, 450), 0)
    assert numbers(window.lines_after(148, 400)) == list(range(148, 500))
    assert numbers(window.lines_before(402, 300)) == list(range(102, 402))


async def test_search_finds_matches_in_log_files(tmp_path: Path) -> None:
    ring = ring_of(500)
    window, files = LogViewport(ring), stored(tmp_path, 500)
    window.set_search(Matcher.parse("line .*50$"))
    assert window.search is not None and window.search.numbers == [450]
    window.open_files(files, 0)
    assert [each async for each in search_earlier(window, window.search)] == [[50, 150, 250, 350]]
    assert window.search.numbers == [50, 150, 250, 350, 450]
    assert [window.find_match(n) for n in (0, 51, 451)] == [50, 150, 50]
    ring.extend([f"line {i}" for i in range(500, 560)])
    window.update()
    assert window.search.numbers[-1] == 550


@pytest.mark.proof("2 s of a processor")
async def test_slow_pattern_is_given_up_in_log_files(tmp_path: Path) -> None:
    ring = ring_of(500)
    window, files = LogViewport(ring), stored(tmp_path, 500)
    (tmp_path / "r000.out").write_bytes(b"m" * 3000 + (tmp_path / "r000.out").read_bytes()[3000:])
    for text in ("(m+m+)+y", "!(m+m+)+y"):
        window.set_filter(Matcher.parse(text, invertible=True))
        assert window.filter is not None
        window.open_files(files, 0)
        assert [each async for each in search_earlier(window, window.filter)] == []
        assert window.filter is None and window.timed_out_text == text
        window.timed_out_text = ""


async def test_cancelled_search_of_log_files_stops(tmp_path: Path) -> None:
    files = stored(tmp_path, 100_000)
    looked: list[str] = []

    class Seen(Matcher):
        def matches(self, text: str) -> bool:
            looked.append(text)
            return super().matches(text)

    found = Seen.parse("line", invertible=True)
    assert found is not None
    search = asyncio.create_task(search_files(files, found, 0, 100_000))
    while not looked:
        await asyncio.sleep(0)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    await asyncio.get_running_loop().shutdown_default_executor()  # waits for its threads
    assert len(looked) < 100_000


def test_filter_includes_new_lines_and_can_be_inverted() -> None:
    ring = ring_of(30)
    window = LogViewport(ring)
    window.set_filter(Matcher.parse("line .*5$"))
    assert numbers(window.lines_after(0, 9)) == [5, 15, 25]
    ring.extend([f"line {i}" for i in range(30, 40)])
    window.update()
    assert numbers(window.lines_before(40, 2)) == [25, 35]
    assert window.count_newer(5) == 3
    window.set_filter(Matcher.parse("!5", invertible=True))
    assert numbers(window.lines_after(4, 3)) == [4, 6, 7]


def test_filter_forgets_evicted_lines() -> None:
    ring = ring_of(0)
    window = LogViewport(ring)
    window.set_filter(Matcher.parse("line"))
    for start in range(0, 20_000, 50):
        ring.extend([f"line {i}" for i in range(start, start + 50)])
        window.update()
    assert window.filter is not None
    assert len(window.filter.numbers) < 5_000
    assert numbers(window.lines_after(0, 1)) == [19_900]


def test_search_wraps_around_in_both_directions() -> None:
    window = LogViewport(ring_of(30))
    window.set_search(Matcher.parse("7"))
    assert [window.find_match(n) for n in (0, 8, 18, 28)] == [7, 17, 27, 7]
    assert [window.find_match(n, backwards=True) for n in (29, 16, 6)] == [27, 7, 27]
    window.set_search(Matcher.parse("nowhere"))
    assert window.find_match(0) is None


def test_search_ignores_case_and_accepts_invalid_patterns() -> None:
    small, capital = Matcher.parse("oom"), Matcher.parse("OOM")
    assert small is not None and capital is not None
    assert small.matches("CUDA OOM") and capital.matches("CUDA OOM") and not capital.matches("room")
    broken = Matcher.parse("a[b")
    assert broken is not None and broken.matches("x a[b y") and broken.spans("x a[b y") == [(2, 5)]
    braces = Matcher.parse("step_{i}")
    assert braces is not None and braces.matches("step_{i}") and not braces.matches("step_2")
    assert Matcher.parse("") is None and Matcher.parse("!", invertible=True) is None
    colored = Matcher.parse("loss=2")
    assert colored is not None and colored.matches("\x1b[32mloss\x1b[0m=2")


PIECES = (
    *(
        "a", "b", "B", "^", "$", ".", "|", "A", "x*", "b+", "[^a]", "[ab]", "[@-_]", "(?!a)", "(?=b)", "(?<!b)",
        "(?<=a)",
    ),
    *(r"\s", r"\d", r"\w", r"\b", r"\B", r"\Z", r"\A"),
)  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5), st.lists(st.text("ab ABx1\té", max_size=6), max_size=6)
)
def test_joined_lines_match_if_any_line_matches(pattern: list[str], lines: list[str]) -> None:
    matcher = Matcher.parse("".join(pattern), invertible=True)
    assert matcher is not None
    if any(map(matcher.matches, lines)):
        assert matcher.may_match("\n".join(lines))


def test_simple_patterns_are_matched_on_joined_lines() -> None:
    quick = [Matcher.parse(text) for text in ("loss 0.777", "^step (1|2)$", "Error", "rank\\d+")]
    assert all(matcher is not None and not matcher.may_match("one\nof many") for matcher in quick)
    for text in ("!x", "[^x]*y", "a(?!b)", "x\\s+y"):
        matcher = Matcher.parse(text, invertible=True)
        assert matcher is not None and matcher.may_match("one\nof many"), "each is looked at"


@pytest.mark.proof("1 s of a processor")
def test_slow_pattern_is_given_up() -> None:
    ring = ring_of(10)
    window = LogViewport(ring)
    window.set_filter(Matcher.parse("(m+m+)+y"))
    assert window.filter is not None and not window.timed_out_text  # there is nothing yet that it would take long on
    window.set_search(Matcher.parse("5"))
    ring.extend(["m" * 3000, "line 5"])
    window.update()
    assert window.filter is None and window.timed_out_text == "(m+m+)+y"
    assert window.search is not None and len(window.search.numbers) == 2  # what is quick goes on
    endless = Matcher.parse("(m+m+)+y")
    assert endless is not None and endless.spans("y" + "m" * 3000) == []
    window.update()
