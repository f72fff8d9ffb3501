"""Teardown of pools whose ranks wrote files: questions before, receipt afterwards."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Button

from skyward_core.model.errors import PoolError
from skyward_core.model.output_files import Unfetched, WrittenFile
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.views import events
from skyward_tui.app.app import FRAMES, FRAMES_OVER_SSH, SkywardApp
from skyward_tui.dialogs.confirmations import EVERYTHING, QuitScreen, TeardownScreen
from skyward_tui.screens.home_runs_and_pools import PoolsScreen
from tests.support.app_driver import Size, Snap, at_usual_sizes, press, previewed, running_app, screen_text, until
from tests.support.fake_session import FakeSession, done

SIZE = (100, 30)
GB = 1_000_000_000
FILES = [
    WrittenFile("checkpoints/step-9000/model.safetensors", 2 * GB, 1.0, 0, "1"),
    WrittenFile("checkpoints/step-8000/model.safetensors", GB, 0.5, 0, "2"),
    WrittenFile("out/metrics.csv", 12_000, 2.0, 1, "3"),
    WrittenFile("o\x1b[2Jdd\n", 3, 2.0, 1, "4"),
]
TOO_MUCH = Unfetched([WrittenFile("best.pt", 5_000_000, 2.0, 0, "5")], FILES, 0, True, GB)


async def asked(app: SkywardApp, pilot: Pilot[None]) -> TeardownScreen:
    await until(pilot, "▶ ")
    await press(pilot, "X", until=lambda: isinstance(app.screen, TeardownScreen))
    assert isinstance(app.screen, TeardownScreen)
    return app.screen


def words(app: SkywardApp) -> str:
    """Return the words of the dialog, regardless of line breaks."""
    return " ".join(screen_text(app).replace("│", " ").split())


def receipt(**more: object) -> Receipt:
    return Receipt("p", 2, (0, 1), (), 0.4, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("more_keys", "expected"), [((), EVERYTHING), (("right",), None), (("right", "right"), 0)])
async def test_files_that_would_be_lost_are_named_with_a_choice(
    app: SkywardApp, session: FakeSession, more_keys: tuple[str, ...], expected: int | None
) -> None:
    session.pool("p", 2, price=1.0)
    session.unfetched["p"] = done(TOO_MUCH)
    async with app.run_test(size=SIZE) as pilot:
        screen = await asked(app, pilot)
        await until(pilot, lambda: "deletes 4 unfetched files (3 GB) with the machines" in words(app))
        assert "2 GB checkpoints/step-9000/model.safetensors" in words(app) and "and 1 more" in words(app)
        assert "downloads 1 output file (5 MB) first: 5 MB best.pt" in words(app)
        await until(pilot, lambda: "Fetch all 3 GB" in screen_text(app) and "Up to 1 GB" in screen_text(app))
        assert app.focused is screen.query_one("#cancel")
        await pilot.press("right")
        await until(pilot, lambda: app.focused is screen.query_one("#all"))
        assert session.torn_down == []
        await press(pilot, *more_keys, "enter", until=lambda: session.torn_down == ["p"])
        assert session.kept_outputs == [expected]


@pytest.mark.proof("0.3 s of a processor", after=2)
@pytest.mark.parametrize(
    ("left", "message"),
    [
        (Unfetched([], FILES[2:3], 0, True, GB), "unfetched file (12 kB) first: 12 kB out/metrics.csv"),
        (Unfetched([], FILES[:2], 0, False, GB), "2 unfetched files (3 GB) stay on the hosts"),
        (Unfetched([], FILES[3:], 0, False, GB), "stays on the hosts: 3 bytes odd↵"),
        (Unfetched([], [], 0, False, GB, {1: "\x1b[2Jgone"}), "! cannot list the files of node 1: gone"),
    ],
)
async def test_files_below_the_limit_are_named_without_a_choice(
    app: SkywardApp, session: FakeSession, left: Unfetched, message: str
) -> None:
    session.pool("p", 2)
    session.unfetched["p"] = done(left)
    async with app.run_test(size=SIZE) as pilot:
        screen = await asked(app, pilot)
        await until(pilot, lambda: message in words(app))
        assert "Fetch all" not in screen_text(app) and "\x1b" not in screen_text(app)
        assert app.focused is screen.query_one("#cancel")
        await press(pilot, "right", "enter", until=lambda: session.torn_down == ["p"])
        assert session.kept_outputs == [None]


def test_incomplete_file_list_may_exceed_the_limit() -> None:
    assert Unfetched([], [], 1, True, GB).exceeds_limit
    assert not Unfetched([], [], 1, False, GB).exceeds_limit
    assert not Unfetched([], FILES[1:2], 0, True, GB).exceeds_limit
    assert Unfetched([], FILES[1:3], 0, True, GB).exceeds_limit


async def test_confirmation_before_the_file_list_arrives_waits_for_it(app: SkywardApp, session: FakeSession) -> None:
    session.pool("p", 2)
    session.unfetched["p"] = file_list = Future[Unfetched]()
    async with app.run_test(size=SIZE) as pilot:
        screen = await asked(app, pilot)
        await until(pilot, lambda: "listing unfetched files" in words(app))
        await press(pilot, "right", "enter", until=lambda: "Confirm again to tear down without the list" in words(app))
        assert session.torn_down == []
        file_list.set_result(TOO_MUCH)
        await until(pilot, lambda: app.focused is screen.query_one("#all"))
        assert session.torn_down == []
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        assert session.torn_down == []


async def test_second_confirmation_skips_a_missing_file_list(app: SkywardApp, session: FakeSession) -> None:
    session.pool("p", 2)
    session.unfetched["p"] = file_list = Future[Unfetched]()
    async with app.run_test(size=SIZE) as pilot:
        await asked(app, pilot)
        await press(pilot, "right", "enter", until=lambda: "Confirm again to tear down without the list" in words(app))
        await until(pilot, lambda: not app.screen.query_one("#down").has_class("-active"))  # takes no press
        await press(pilot, "enter", until=lambda: session.torn_down == ["p"])
        file_list.set_exception(PoolError("too late"))
        await until(pilot, lambda: "unaccounted 0" in words(app))


async def test_pool_that_cannot_list_its_files_is_torn_down(app: SkywardApp, session: FakeSession) -> None:
    session.pool("p", 2)
    session.unfetched["p"] = file_list = Future[Unfetched]()
    file_list.set_exception(PoolError("nobody answers there"))
    async with app.run_test(size=SIZE) as pilot:
        await asked(app, pilot)
        await until(pilot, lambda: "cannot list the files of its ranks: nobody answers there" in words(app))
        await press(pilot, "right", "enter", until=lambda: session.torn_down == ["p"])


async def test_confirmed_teardown_still_asks_about_files(app: SkywardApp, session: FakeSession) -> None:
    """A teardown on quit is confirmed before the dialog opens."""
    view = session.pool("p", 2)
    session.unfetched["p"] = done(TOO_MUCH)
    async with running_app(app, SIZE, until="▶ ") as pilot:
        app.push_screen(TeardownScreen([view.key], asked=True))
        await until(pilot, lambda: app.focused is not None and app.focused.id == "all")
        assert session.torn_down == []
        await press(pilot, "enter", until=lambda: session.kept_outputs == [EVERYTHING])


async def test_receipt_names_lost_files_and_places_of_retained_ones(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    view = session.pool("p", 2)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await asked(app, pilot)
        await press(pilot, "right", "enter", until=lambda: session.torn_down == ["p"])
        session.emit(view, events.PoolState(pool="p", state="stopping", detail="1 GB of 3 GB is here"))
        await until(pilot, lambda: "1 GB of 3 GB is here" in words(app))
        many = tuple(f"remains on the host: 1 file, 2 MB, on node {n} in ~/x: a\x1b[2Jb ({n} MB)" for n in range(20))
        session.downing["p"].set_result(receipt(notes=many, lost=("2 GB on node 0: \x1b[2Jmodel.pt",)))
        await until(pilot, lambda: "created 2, verified gone 2, unaccounted 0 (0.4 s)" in words(app))
        assert "! lost: 2 GB on node 0: model.pt" in words(app)
        assert "remains on the host: 1 file, 2 MB, on node 0 in ~/x: ab (0 MB)" in words(app)
        assert "nothing left" not in screen_text(app)
        facts = screen.query_one("#facts", VerticalScroll)
        await until(pilot, lambda: facts.can_focus)  # it has more lines than there is room for
        await press(pilot, "shift+tab", "end", until=lambda: "on node 19 in ~/x" in words(app))
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        assert "lost: 2 GB on node 0" in screen_text(app)


async def test_unreachable_machine_is_not_reported_as_gone(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    view = session.pool("p", 2)
    async with app.run_test(size=SIZE) as pilot:
        await asked(app, pilot)
        await press(pilot, "right", "enter", until=lambda: session.torn_down == ["p"])
        session.emit(view, events.NodePhase(pool="p", node=0, phase="gone", detail="verified"))
        session.emit(view, events.NodePhase(pool="p", node=1, phase="gone", detail="its machine is lost"))
        session.downing["p"].set_result(Receipt("p", 2, (0,), ("gpu7",), 0.4))
        await until(pilot, lambda: "unaccounted 1: gpu7" in words(app))
        assert "n0 ✓ gone verified" in words(app) and "n1 ! not verified its machine is lost" in words(app)
        assert "X: retry once the missing machines can be reached" in words(app)


@at_usual_sizes
async def test_teardown_question_snapshot(app: SkywardApp, session: FakeSession, snap: Snap, size: Size) -> None:
    session.pool_with_run("llama-ft", 2, price=12.5, provider="rented")
    session.unfetched["llama-ft"] = done(TOO_MUCH)
    async with running_app(app, size, until=lambda: "▶ " in screen_text(app) and previewed(app)) as pilot:
        screen = await asked(app, pilot)
        await until(pilot, "Fetch all 3 GB")
        await press(pilot, "right", until=lambda: app.focused is screen.query_one("#all"))
        snap(app, f"teardown-files-{size[0]}x{size[1]}")


async def test_receipt_with_retained_files_snapshot(app: SkywardApp, session: FakeSession, snap: Snap) -> None:
    session.auto = False
    session.pool("p", 2)
    where = "on node 0 (gpu1) in /home/me/.skyward/work/4f1c: "
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(app, pilot)
        await press(pilot, "right", "enter", until=lambda: session.torn_down == ["p"])
        await until(pilot, "◍ stopping    2/2")  # in the list behind
        notes = (f"remains on the host: 3 files, 1.2 GB, {where}ck/model.pt (1.2 GB), out/a.csv (3 kB), b (1 kB)",)
        lost = ("1 file, 2 GB, on node 1 (10.0.0.2) in /work: ck/old.pt (2 GB)",)
        session.downing["p"].set_result(receipt(notes=notes, lost=lost))
        await until(pilot, lambda: "! lost: 1 file" in words(app))
        await until(
            pilot, lambda: app.focused is not None and str(app.screen.query_one("#cancel", Button).label) == "Close"
        )
        await until(pilot, "✓ p: created 2, verified gone 2")
        await until(pilot, "▶ p    ◍ stopping")  # the list below, too
        snap(app, "torn-down-files-80x24")


# Ways out of the app that only look like the end: a teardown that failed, one that goes on behind its dialog.


LEFT = Receipt("paid", 1, (), ("i-0123",), 9.0)


async def quit_by_tearing_down(app: SkywardApp, pilot: Pilot[None]) -> None:
    await until(pilot, "▶ ")
    await press(pilot, "q", until=lambda: isinstance(app.screen, QuitScreen))
    app.screen.dismiss("down")
    await until(pilot, "$4.00/h")
    await pilot.press("right", "enter")


async def test_app_stays_open_if_the_teardown_on_quit_failed(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    session.pool("paid", 1, price=4.0)
    session.downing["paid"] = future = Future[Any]()
    async with app.run_test(size=SIZE) as pilot:
        await quit_by_tearing_down(app, pilot)
        await until(pilot, lambda: session.torn_down == ["paid"])
        future.set_result(LEFT)
        await until(pilot, "unaccounted 1: i-0123")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, PoolsScreen))
        assert app.is_running and not session.detached


async def test_teardown_chosen_on_quit_needs_no_second_confirmation(app: SkywardApp, session: FakeSession) -> None:
    session.pool("free", 1)
    async with running_app(app, SIZE, until="▶ ") as pilot:
        await press(pilot, "q", until=lambda: isinstance(app.screen, QuitScreen))
        app.screen.dismiss("down")
        await until(pilot, lambda: session.torn_down == ["free"])


async def test_hiding_a_teardown_on_quit_keeps_the_app_open(app: SkywardApp, session: FakeSession) -> None:
    session.auto = False
    session.pool("paid", 1, price=4.0)
    async with app.run_test(size=SIZE) as pilot:
        await quit_by_tearing_down(app, pilot)
        await until(pilot, lambda: session.torn_down == ["paid"])
        await press(pilot, "escape", until=lambda: isinstance(app.screen, PoolsScreen))
        session.finish_down("paid")
        await until(pilot, "paid: created 1, verified gone 1")
        assert app.is_running and not session.detached


@pytest.mark.parametrize(("connection", "frames"), [("", FRAMES), ("10.0.0.1 1 10.0.0.2 22", FRAMES_OVER_SSH)])
def test_app_paints_less_often_over_ssh_and_when_idle(
    app: SkywardApp, connection: str, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection:
        monkeypatch.setenv("SSH_CONNECTION", connection)
    assert app._refresh_interval == 1 / frames, "it has just begun"
    app._lively_until = 0.0
    assert app._refresh_interval == 1 / FRAMES_OVER_SSH, "nobody is there, and nothing comes"
    app._last_refresh = (None, time.monotonic())
    assert app._refresh_interval == 1 / frames, "something has come"
    assert FRAMES_OVER_SSH < FRAMES
