"""Past runs in the app: filter, sorting, marks, and opening."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest

from skyward_core.client.log_search import LogSearch
from skyward_core.client.run_comparison import Comparison
from skyward_core.client.run_history import MetricSummary, RunPreviewData
from skyward_core.model.errors import LedgerError
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_log_reader import RunLogs
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.compare import CompareScreen, different_lines
from skyward_tui.screens.history import HistoryScreen, PastRunList
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from skyward_tui.screens.run import RunScreen
from skyward_tui.text.queue_trial_and_comparison_rows import ComparedLine
from skyward_tui.widgets.screen_frame_and_replay_line import HintBar
from tests.support.app_driver import press, running_app, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.past import compared_run, past_run, some_comparison, some_past
from tests.support.stored_runs import stored_run
from tests.support.sweeps import swept

SIZE = (130, 30)


def pools(app: SkywardApp) -> list[str]:
    return [run.pool[-1] for run in app.screen.query_one(PastRunList).rows]


async def test_history_lists_and_filters_past_runs(app: SkywardApp, session: FakeSession) -> None:
    some_past(session)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until="6 of 6 runs")
        assert pools(app) == list("123456")
        shown = screen_text(app)
        assert "✗ failed" in shown and "disk full" in shown and "$25.00" in shown and "$?" in shown
        await press(pilot, "slash", *"EVALU", until=lambda: pools(app) == ["2"])
        await pilot.press(*" disk", "enter")
        assert pools(app) == ["2"] and "with: EVALU disk" in screen_text(app)
        await press(pilot, "escape", until=lambda: pools(app) == list("123456"))
        await press(pilot, "F", until=lambda: pools(app) == ["2", "5"])
        assert "only failures" in screen_text(app)
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))


@pytest.mark.proof("0.4 s of a processor", after=1)
@pytest.mark.parametrize("width", [80, 130, 220])
async def test_history_is_sorted_by_keys(app: SkywardApp, session: FakeSession, width: int) -> None:
    some_past(session)
    summary = MetricSummary(0.2, 0.1, 1.0)
    session.past[0] = replace(session.past[0], metrics={"validation_loss_of_the_ema": summary})
    async with app.run_test(size=(width, 30)) as pilot:
        await press(pilot, "H", until="WHEN▼")
        order, places = list[str](), list[int]()
        while not order or "WHEN▼" not in screen_text(app):
            (head,) = (line for line in screen_text(app).splitlines() if "OUTCOME" in line)
            ((arrow, title),) = (
                (each.start(), each[1]) for each in re.finditer("(BEST|LAST|[A-Z]+)( V[A-Z…]+)?[▲▼]", head)
            )
            order.append(title)
            places.append(arrow)
            await pilot.press("o")
        assert order == ["WHEN", "POOL", "FUNCTION", "OUTCOME", "TIME", "BEST", "LAST", "LR", "COST", "SCRIPT"]
        assert width < 220 or places == sorted(places), "the order on the screen"
        await press(pilot, *["right"] * 8, until="COST▼")
        assert pools(app) == list("421635")
        await press(pilot, "R", until="COST▲")
        assert pools(app) == list("536124")
        await press(pilot, "left", until="LR▲")


@pytest.mark.parametrize("dollars", [0.0, 1.5, None])
async def test_cost_has_a_column_only_if_a_run_cost_anything(
    app: SkywardApp, session: FakeSession, dollars: float | None
) -> None:
    session.past = [past_run(1, dollars=0.0), past_run(2, dollars=dollars)]
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "H", until="o R sort")
        assert ("COST" in screen_text(app)) == (dollars != 0.0)


async def test_history_ranks_runs_by_their_metrics_and_arguments(app: SkywardApp, session: FakeSession) -> None:
    losses = {1: (0.5, 0.2), 2: (0.4, 0.1), 3: (0.3, 0.3)}
    session.past = [past_run(4, arguments=("epochs=5",))] + [
        past_run(at, arguments=(f"lr=0.{at}", "epochs=5"), metrics={"loss": MetricSummary(last, least, 1.0)})
        for at, (last, least) in losses.items()
    ]
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until="o R sort")
        head, *_ = (line for line in screen_text(app).splitlines() if "OUTCOME" in line)
        assert "BEST LOSS" in head and "LAST LOSS" in head and "LR" in head and "EPOCHS" not in head
        assert ["★ 0.1" in line for line in screen_text(app).splitlines()].count(True) == 1
        await press(pilot, *["o"] * 5, until="BEST LOSS▲")
        assert pools(app) == list("2134"), "the best run is first, and a run without the metric is last"
        await press(pilot, "o", until="LAST LOSS▲")
        assert pools(app) == list("3214")
        await press(pilot, "o", "R", until="LR▼")
        assert pools(app) == list("3214")
        await press(pilot, "slash", *"llama-4", until=lambda: pools(app) == ["4"])
        assert "LOSS" not in screen_text(app) and "WHEN▼" in screen_text(app)


async def test_enter_opens_a_past_run_and_back_returns_to_history(app: SkywardApp, session: FakeSession) -> None:
    (first, *_) = some_past(session)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == first.run
        await press(pilot, "q", until=lambda: isinstance(app.screen, HistoryScreen))


async def test_unavailable_past_run_names_the_results_command(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-1", 2)
    session.past = [past_run(1, run="0123456789", key=view.key)]
    session.tear_down(view.key)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        await press(pilot, "enter", until="skyward-tui results 0123456789")


async def test_up_to_eight_marked_runs_are_drawn_in_one_chart(app: SkywardApp, session: FakeSession) -> None:
    session.past = [past_run(at) for at in range(1, 11)]
    for at, run in enumerate(session.past):
        book = MetricStore()
        for step in range(20):
            book.add_values(run.run, 0, session.now + step, {"step": step, "loss": at + 1 / (step + 1)})
        session.past_looks[run.run] = RunPreviewData(book=book)
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        await pilot.press(*["space", "down"] * 10)
        listed = app.screen.query_one(PastRunList)
        assert listed.marked == [run.run for run in session.past[2:]], "the runs that were marked first are unmarked"
        await press(pilot, "up", until=lambda: screen_text(app).count("━ ") == 8)
        assert f"━ {session.past[9].run}" in screen_text(app)
        assert "└step 0─" in screen_text(app) and "─10─" in screen_text(app)
        await press(pilot, "m", until=lambda: "└0:00─" in screen_text(app) and "─0:10─" in screen_text(app))


@pytest.mark.parametrize("marked", [2, 8])
async def test_chart_of_marked_runs_is_shown_on_a_small_screen(
    app: SkywardApp, session: FakeSession, marked: int
) -> None:
    session.past = [past_run(at) for at in range(1, 31)]
    for at, run in enumerate(session.past):
        book = MetricStore()
        for step in range(20):
            book.add_values(run.run, 0, session.now + step, {"loss": at + 1 / (step + 1)})
        session.past_looks[run.run] = RunPreviewData(book=book)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        assert "─ details" not in screen_text(app) and "space mark" in screen_text(app)
        await pilot.press(*["space", "down"] * marked)
        await until(pilot, "c compare")
        await until(
            pilot, lambda: f"━ {session.past[0].run}  loss 0.05" in screen_text(app) and "┤" in screen_text(app)
        )
        rows = [row for row in app.screen.query_one(PastRunList).visible_rows() if "◆" in row.plain]
        marks = [span.style for row in rows for span in row.spans if "◆" in row.plain[span.start : span.end]]
        assert len(rows) > 1 and len({mark for mark in marks if "rank" in str(mark)}) == len(rows), "colours of lines"


async def test_note_with_tags_is_shown_and_filters(app: SkywardApp, session: FakeSession) -> None:
    session.past = [past_run(1), past_run(2)]
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        await press(pilot, "quotation_mark", until="Note of run")
        assert "enter: confirm, esc: close" in screen_text(app)
        await press(pilot, *"#good lr", "enter", until=lambda: isinstance(app.screen, HistoryScreen))
        await until(pilot, "#good lr")
        await press(pilot, "slash", *"#good", until=lambda: len(pools(app)) == 1)
        (run,) = app.screen.query_one(PastRunList).rows
        assert (run.user_note, run.tags) == ("#good lr", ["good"])


async def test_empty_history_names_the_launch_key(app: SkywardApp, session: FakeSession) -> None:
    async with running_app(app, (60, 15), until="No pools yet") as pilot:
        assert "Press n to launch a script" in screen_text(app)
        await press(pilot, "H", until="No runs yet. n on the list of pools")
        await until(pilot, "esc back")
        shown = screen_text(app)
        assert "launch a script" in shown and "…" not in shown, "what has no room goes on below"
        assert not {"find", "compare", "failures"} & set(shown.splitlines()[-1].split()), "nothing to do it to"
        await press(pilot, "escape", "at", until="No host groups yet")
        assert "…" not in screen_text(app)
        await press(pilot, "escape", "n", until="packaged examples")  # instead of an empty plan


def test_sections_without_differences_have_no_heading() -> None:
    head, one = ComparedLine("", "a", "b"), ComparedLine("lr", "1", "2", differs=True)
    equal, end = ComparedLine("epochs", "5", "5"), ComparedLine("results", is_heading=True)
    first, second = ComparedLine("arguments", is_heading=True), ComparedLine("metrics", is_heading=True)
    assert different_lines([head, first, equal, one, second, equal, end]) == [head, first, one]
    assert different_lines([head, equal, first, equal]) == [head]


async def test_two_marked_runs_are_compared(app: SkywardApp, session: FakeSession) -> None:
    past = some_past(session)
    some_comparison(session)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        await press(pilot, "c", until="mark two runs to compare (space: mark)")
        await pilot.press("space", "down", "space", "c")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen) and "loss: llama" in screen_text(app))
        assert session.compared == [(past[0].run, past[1].run)]
        shown = screen_text(app)
        assert any("≠" in line and "a1b2c3d4e5" in line for line in shown.splitlines())
        assert any("plugins" in line and "≠" not in line for line in shown.splitlines())
        assert "⠒" in shown or "⠉" in shown or "⣀" in shown, "curves"
        await press(pilot, "u", until="─ differences ─")
        assert not any("plugins" in line for line in screen_text(app).splitlines())
        assert any("≠" in line and "a1b2c3d4e5" in line for line in screen_text(app).splitlines())
        await press(pilot, "u", until=lambda: "plugins" in screen_text(app) and "─ two runs ─" in screen_text(app))
        await press(pilot, "]", until="only_0.1: ")
        await press(pilot, "[", "[", until="only_0.02: ")
        await press(pilot, "]", until=lambda: "└step 0─" in screen_text(app) and "─40─" in screen_text(app))
        await press(pilot, "m", until=lambda: "└0:00─" in screen_text(app) and "─40:00─" in screen_text(app))
        await press(pilot, "y", until="copied comparison")
        assert "≠ +2 -1 lines" in shown and "c shows them" in shown
        await press(pilot, "c", until="@@ -2,6 +2,7 @@")
        assert "-def train(lr=0.1):" in screen_text(app) and "+def train(lr=0.02):" in screen_text(app)
        await press(pilot, "escape", until=lambda: isinstance(app.screen, CompareScreen))
        await press(pilot, "q", until=lambda: isinstance(app.screen, HistoryScreen))


@pytest.mark.proof("1 s of a processor")
async def test_equal_hostile_and_long_scripts_in_the_comparison(app: SkywardApp, session: FakeSession) -> None:
    past = some_past(session)
    first, second, third = (compared_run(each, 0.1, source=each.run) for each in past[:3])
    cases = (
        (first, second, f"the script text of run {past[0].run} was not saved"),
        (replace(first, text="a"), replace(second, text="a"), "the script texts of both runs are equal"),
        (replace(first, text="a"), replace(third, text="\x1b]0;x\x07b\u202e\r[b]\n" * 9999), "+b�↵[b]"),
    )
    async with running_app(app, (80, 24), until="▶") as pilot:
        for left, right, expected in cases:
            session.comparison = Comparison.of(left, right)
            app.show_comparison(left.past.run, right.past.run)
            await until(pilot, lambda: isinstance(app.screen, CompareScreen) and "loss: " in screen_text(app))
            await press(pilot, "c", until=expected)
            if isinstance(app.screen, CompareScreen):
                await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen))
        await press(pilot, "end", until="more lines. Print all with:")


async def test_ages_are_current_after_returning_to_history(app: SkywardApp, session: FakeSession) -> None:
    some_past(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "H", until=lambda: "▶" in screen_text(app) and isinstance(app.screen, HistoryScreen))
        shown = screen_text(app)
        await press(pilot, "enter", until=lambda: isinstance(app.screen, RunScreen))
        session.now += 40 * 24 * 3600
        await press(pilot, "q", until=lambda: isinstance(app.screen, HistoryScreen))
        assert "43d ago" not in shown
        await until(pilot, "43d ago")


async def test_undismissed_failures_are_counted_and_listed(app: SkywardApp, session: FakeSession) -> None:
    past = some_past(session)
    async with running_app(app, SIZE, until="✗ 2 failures (F)") as pilot:
        await press(pilot, "F", until=lambda: pools(app) == ["2", "5"])
        await pilot.press("F")
        assert pools(app) == ["2", "5"], "they are all failures"
        await press(pilot, "delete", until=lambda: pools(app) == ["5"])
        assert session.dismissed == [past[1].run]
        await press(pilot, "Z", until="No undismissed failures")
        await press(pilot, "q", until=lambda: isinstance(app.screen, PoolsScreen) and "failure" not in screen_text(app))
        await press(pilot, "H", until=lambda: isinstance(app.screen, HistoryScreen) and len(pools(app)) == 6)
        await pilot.press("Q")
        assert len(session.dismissed) == 2, "history forgets nothing"


async def test_run_that_fails_while_the_app_is_open_is_counted(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-1", 2)
    async with running_app(app, SIZE, until="▶") as pilot:
        session.past = [past_run(0, run=run.id, key=view.key, state="failed")]
        session.end_run(view, run, "failed")
        await until(pilot, "✗ 1 failure (F)")


async def test_selected_past_run_is_previewed_after_the_cursor_stops(app: SkywardApp, session: FakeSession) -> None:
    first, second, *_ = some_past(session)
    of_first = compared_run(first, 0.1)
    session.past_looks[first.run] = RunPreviewData(of_first.view, of_first.book, 3, ["\x1b[31mthe last\x1b[0m line"])
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("H")
        shown = (
            f"━ {first.run}  loss 0.2899",
            "┤",
            "last lines of rank 3",
            "the last line",
            "value  mean 0.6",
            "lr=0.1",
        )
        await until(pilot, lambda: all(each in screen_text(app) for each in shown))
        await press(pilot, "down", until="no output, or its log")
        await press(pilot, "up", until="the last line")
        assert session.looked_at == [first.run, second.run], "each once"
        await pilot.resize_terminal(80, 18)
        await until(pilot, lambda: "─ details" not in screen_text(app) and "the last line" not in screen_text(app))


async def test_unreadable_past_run_is_reported(app: SkywardApp, session: FakeSession) -> None:
    some_past(session)
    refused: Future[RunPreviewData] = Future()
    refused.set_exception(LedgerError("the ledger is damaged"))
    session.preview_run = lambda run: refused  # type: ignore[method-assign]
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "H", until="the ledger is damaged")


@pytest.mark.proof("0.5 s of a processor")
async def test_past_sweep_is_previewed_with_its_trials(app: SkywardApp, session: FakeSession) -> None:
    view, run = swept(session)
    table = session.boards[run.id].table(run.id, run.tasks, view.metrics)
    session.past = [past_run(1, run=run.id, key=view.key, pool=view.name, ranks=6, counted="trial")]
    session.past_looks[run.id] = RunPreviewData(run, view.metrics, trials=table)
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "H", until="ValueError: bad seed 3")
        shown = screen_text(app)
        assert "6 trials" in shown and "6 ranks" not in shown
        assert "acc by lr" in shown and "0.625" in shown


@pytest.mark.proof("0.5 s of a processor")
async def test_short_history_leaves_its_room_to_the_preview(app: SkywardApp, session: FakeSession) -> None:
    some_past(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "H", until="─ details")
        assert "lr=0.1" in screen_text(app).split("─ details")[1]
        session.past += [past_run(each) for each in range(7, 30)]
        await press(pilot, "r", until="llama-19")
        assert "─ details" not in screen_text(app), "it would leave too few of so many"


async def test_history_finds_words_in_logs_and_enter_opens_the_line(app: SkywardApp, session: FakeSession) -> None:
    first, *_ = some_past(session)
    session.ledger = Ledger()
    quiet = b"".join(b"step %d\n" % step for step in range(400))
    text = quiet + b"loss is nan \x1b]0;evil\x07here\n" + quiet + b"nan again\n" + quiet
    stored_run(session.ledger, first.run, {0: quiet, 1: text}, opened_at=first.opened_at)
    row = session.ledger.find_pool(f"pool-{first.run}")
    assert row is not None
    session.past[0] = replace(first, key=row.key)
    session.stored[first.run] = RunLogs(session.ledger, first.run)
    session.views[0].key = row.key
    async with app.run_test(size=(160, 40)) as pilot:
        await press(pilot, "H", until="6 of 6 runs")
        await pilot.press("slash", *"NAN")
        assert pools(app) == []
        await until(pilot, lambda: pools(app) == ["1"])
        await until(pilot, lambda: "searching logs" not in screen_text(app))
        shown = screen_text(app)
        assert "r1 line 401, and 1 more: loss is nan here" in shown and "evil" not in shown
        assert shown.count("loss is nan here") == 2, "beside the list, and in it"
        await press(pilot, "enter", "enter", until=lambda: isinstance(app.screen, RunScreen))
        await until(pilot, lambda: "loss is nan here" in screen_text(app) and "match 1/2" in screen_text(app))
        assert isinstance(app.screen, RunScreen) and app.screen.rank == 1
        assert "step 399" in screen_text(app) and "nan again" not in screen_text(app)
        await press(pilot, "q", until=lambda: isinstance(app.screen, HistoryScreen))
        await press(pilot, "slash", "x", until=lambda: pools(app) == [])
        assert session.searches[0].done


async def test_runs_found_in_logs_are_ordered_by_age(app: SkywardApp, session: FakeSession) -> None:
    """Runs found in the ledger are listed first; a match in a log may belong to a newer run."""
    past = some_past(session)
    session.ledger = Ledger()
    for each in (past[0], past[2], past[4]):
        stored_run(session.ledger, each.run, {0: b"evaluate\n"}, opened_at=each.opened_at)
    session.past[:] = [
        each if (row := session.ledger.find_pool(f"pool-{each.run}")) is None else replace(each, key=row.key)
        for each in past
    ]
    async with app.run_test(size=(160, 40)) as pilot:
        await press(pilot, "H", until="6 of 6 runs")
        await press(pilot, "slash", *"evaluate", until=lambda: pools(app) == ["1", "2", "3", "5"])


@pytest.mark.proof("0.5 s of a processor")
async def test_log_search_stops_when_the_filter_changes(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, step = threading.Event(), LogSearch.step

    def held(search: LogSearch, seconds: float = 0.2) -> object:
        assert goes_on.wait(60)
        return step(search, seconds)

    monkeypatch.setattr(LogSearch, "step", held)
    first, *_ = some_past(session)
    session.ledger = Ledger()
    stored_run(session.ledger, first.run, {0: b"nan\n"}, opened_at=first.opened_at)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until="6 of 6 runs")
        await press(pilot, "slash", *"nan", until=lambda: bool(session.searches))
        await press(pilot, "escape", until=lambda: pools(app) == list("123456"))
        goes_on.set()
        assert session.searches[0].step(60) == {} and not session.searches[0].done, "it was cancelled"


async def test_log_search_that_ends_while_the_app_exits_updates_no_removed_widget(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = threading.Event()

    def step(search: LogSearch) -> dict[str, object]:
        assert removed.wait(60)
        search.done = True
        return {}

    async def outlive_others(bar: HintBar) -> None:
        while bar.screen.query(PastRunList):
            await asyncio.sleep(0)
        removed.set()
        while any(worker.group == "logs" for worker in app.workers):
            await asyncio.sleep(0)

    monkeypatch.setattr(LogSearch, "step", step)
    first, *_ = some_past(session)
    session.ledger = Ledger()
    stored_run(session.ledger, first.run, {0: b"nan\n"}, opened_at=first.opened_at)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "H", until="6 of 6 runs")
        await press(pilot, "slash", *"nan", until=lambda: bool(session.searches))
        monkeypatch.setattr(HintBar, "on_unmount", outlive_others, raising=False)
    assert removed.is_set() and app._exception is None
