"""Screens show text from ranks, hosts and servers as plain text within its line."""

from __future__ import annotations

import json
import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from skyward_core.model.errors import PoolError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, RootCause, Summary
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.screens.launch import LaunchScreen
from tests.support.app_driver import Size, launch_form, on_launch_form, press, running_app, screen_text, typed, until
from tests.support.fake_session import FakeSession, value
from tests.support.hostile_text import is_harmful

# Sets the clipboard and the title, clears the screen (with both forms of control characters, also past a filter that
# removes sequences only once), reverses text, starts another line, and contains the app's own markup.
EVIL = "E\x1b]52;c;aGk=\x07\x1b]0;t\x1b\\\x1b[\x002J\x1b[2\x1b[2JJ\x9b2J\x9d52;c;aGk=\x9c\u202e\t[b $error]V\nOTHER\r!"


def evil_pool(session: FakeSession) -> PoolView:
    view = session.pool("llama-ft", 2)
    session.emit(view, events.NodePhase(pool="llama-ft", node=0, phase="ready", detail=EVIL, address=EVIL))
    session.emit(view, events.NodeLink(pool="llama-ft", node=1, up=False, detail=EVIL))
    session.emit(view, events.PoolState(pool="llama-ft", state="degraded", detail=EVIL))
    return view


def evil_run(session: FakeSession, view: PoolView) -> None:
    run = session.open_run(view, EVIL)
    session.emit(
        view, events.ItemYielded(pool=view.name, run=run.id, index=0, rank=0, seq=0, summary=value({EVIL: 1.5}))
    )
    view.metrics.add_values(run.id, 1, session.now, {EVIL: 2.5})
    session.print(view, 0, EVIL + "\n")
    session.print(view, 1, EVIL, "err")
    session.end_rank(view, run, 0, summary=value({EVIL: EVIL, "loss": 1.0}))
    session.end_rank(view, run, 1, "raised", error=ErrorInfo(EVIL, EVIL, f"Traceback {EVIL}"))
    session.end_run(view, run, "failed", RootCause(1, "raised", EVIL, EVIL))
    odd = session.open_run(view, "odd", kind="single")
    session.end_rank(view, odd, 0, summary=Summary(EVIL, EVIL, None, False, 3))


def looks_harmless(app: SkywardApp) -> None:
    rows = screen_text(app).splitlines()
    for row in app.screen._compositor.render_strips():
        for segment in row:
            bad = [c for c in segment.text if c in "\r\n\t\x1b" or is_harmful(c)]
            assert not segment.control and not bad, (bad, segment.text)
    assert len(rows) == app.size.height


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_screens_filter_hostile_text(app: SkywardApp, session: FakeSession, size: Size) -> None:
    def refused(pool: str, run: str) -> Future[None]:
        future: Future[None] = Future()
        future.set_exception(PoolError(EVIL))
        return future

    async def look(pilot: Pilot[None], *keys: str) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        looks_harmless(app)

    session.cancel = refused  # type: ignore[method-assign, assignment]
    view = evil_pool(session)
    async with running_app(app, size, until="▶ llama-ft") as pilot:
        await look(pilot)
        assert "[b $error]V" in screen_text(app)  # not taken for markup
        await look(pilot, "enter")  # a pool without a run: its detail in the log's place
        evil_run(session, view)
        for keys in (["["], ["1"], ["a"], ["w"], ["3"], ["4"], ["5"], ["{"], ["2", "/", "V", "enter"], ["escape"]):
            await look(pilot, *keys)
        await look(pilot, "e")
        await until(pilot, "rank 1 on node 1")
        await look(pilot, "escape")
        app.flash(EVIL, "error")
        await look(pilot)
        await look(pilot, "X")


@pytest.mark.proof("0.5 s of a processor")
async def test_hostile_file_names_are_shown_as_text(app: SkywardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users may choose file names in a shared folder."""
    evil = EVIL.replace("/", "").replace("\0", "")
    folder = Path(f"sub{evil}")
    folder.mkdir()
    for name in (f"{evil}.py", os.fsdecode(b"caf\xe9.py")):
        (folder / name).write_text("import skyward_core as sky\n\n@sky.function\ndef f() -> None: ...\n")
    async with app.run_test(size=(160, 48)) as pilot:

        async def shows(word: str) -> None:
            await until(pilot, lambda: word in screen_text(app))
            looks_harmless(app)
            screen_text(app).encode()  # as the terminal's driver does

        screen = await launch_form(app, pilot, "")
        await pilot.press("ctrl+o")
        await typed(app, pilot, "sub")
        await shows("subE")
        await pilot.press("enter")  # what cannot be shown as it is cannot be picked
        await shows("subE")
        await press(pilot, "escape", until=lambda: app.screen is screen)
        await shows("script")
        monkeypatch.chdir(folder)
        await pilot.press("ctrl+o")
        await shows("caf")


def is_there(app: SkywardApp, shown: str) -> bool:
    """Check whether a text is shown, or for an empty text the form."""
    return shown in screen_text(app) if shown else isinstance(app.screen, LaunchScreen)


@pytest.mark.proof("1 s of a processor")
async def test_hostile_preset_fills_fields_with_text_only(
    app: SkywardApp, session: FakeSession, tmp_path: Path
) -> None:
    """The form reads presets of the current folder, which may come from another user."""
    evil = EVIL.replace("\0", "")
    preset = {
        "script": evil, "function": evil, "arguments": [f"a={evil}", evil], "pool": evil, "python": evil,
        "outputs": [evil], "packages": [evil], "nodes": evil, "env": {evil: evil}, "accelerator": evil,
    }  # fmt: skip
    lines = [
        f"{key} = {json.dumps(value) if key != 'env' else '{' + json.dumps(evil) + '=1}'}"
        for key, value in preset.items()
    ]
    (tmp_path / "skyward.toml").write_text("\n".join([f"[presets.{json.dumps(evil)}]", *lines]) + "\n")
    async with on_launch_form(app, (160, 48), "") as (pilot, _):
        for keys, shown in (
            (["f4"], "Pick a preset"), (["enter"], "preset E"), (["f3"], "Name of the preset"), (["escape"], ""),
            (["f4"], "Pick a preset"), (["ctrl+x"], "Delete preset"), (["escape"], "Pick a preset"),
            (["escape"], ""), (["ctrl+y"], "copied"),
        ):  # fmt: skip
            await pilot.press(*keys)
            await until(pilot, lambda shown=shown: is_there(app, shown))  # type: ignore[misc]
            looks_harmless(app)
        fields = list(app.screen.query(Input))
        for each in fields:
            each.value = evil
            each.focus()
            await pilot.pause()
            looks_harmless(app)
        assert len(fields) > 10 and all(each.value == evil for each in fields)
