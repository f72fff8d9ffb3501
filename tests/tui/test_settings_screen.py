"""The settings screen: values, their sources, and changes that take effect at once and at the next start."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest
from textual import events
from textual.pilot import Pilot

from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.client.user_settings_and_app_state import NotifySettings, read_user_settings
from skyward_core.views.log_buffers_and_rank_activity import MemoryBudget
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import AskScreen
from skyward_tui.dialogs.help_and_focus_jump import HelpScreen
from skyward_tui.dialogs.pickers import ThemePicker
from skyward_tui.screens.hosts import HostsScreen
from skyward_tui.screens.settings_and_keys import KeyScreen, SettingList, SettingsScreen
from skyward_tui.ui.actions import SCOPES, actions_in
from tests.support.app_driver import on_run_screen, press, running_app, screen_text, typed, until
from tests.support.fake_session import FakeSession

SIZE = (140, 36)
BEFORE = """# mine
[app]
motion = false  # it makes me dizzy

[hosts]
lab = ["gpu1"]
"""


@asynccontextmanager
async def opened(app: SkywardApp) -> AsyncIterator[Pilot[None]]:
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        await press(pilot, "comma", until=lambda: isinstance(app.screen, SettingsScreen))
        await until(pilot, lambda: "reading the settings" not in screen_text(app))
        yield pilot


async def stand_on(app: SkywardApp, pilot: Pilot[None], name: str) -> None:
    listed = app.screen.query_one(SettingList)
    at = next(at for at, row in enumerate(listed.rows) if row.name == name)
    while listed.cursor != at:
        await pilot.press("down" if listed.cursor < at else "up")


async def until_shown(app: SkywardApp, pilot: Pilot[None], *texts: str) -> None:
    await until(pilot, lambda: all(text in screen_text(app) for text in texts))


def held() -> settings.UserSettings:
    return read_user_settings(settings.settings_path(), Path("none"))


async def test_settings_screen_lists_all_settings_and_their_source(app: SkywardApp) -> None:
    settings.settings_path().write_text(BEFORE)
    async with opened(app) as pilot:
        names = [row.name for row in app.screen.query_one(SettingList).rows if row.name]
        own = ["commands", "columns.runs"]
        assert names == [
            *(each.name for each in settings.SETTINGS),
            *own,
            *(f"keys.{each.id}" for each in actions_in(*SCOPES)),
        ]
        await stand_on(app, pilot, "commands")
        example = 'nvitop = { key = "f7", command = "ssh -t {pool} nvitop" }'
        await until_shown(app, pilot, "commands  none (default)", example, str(settings.settings_path()))
        await stand_on(app, pilot, "columns.runs")
        await until_shown(app, pilot, "columns.runs  none (default)", 'runs = "lr, val_loss"')
        await stand_on(app, pilot, "app.motion")
        await until_shown(
            app, pilot, "app.motion  false (set by you)", "scroll lists smoothly", str(settings.settings_path())
        )
        await stand_on(app, pilot, "notify.command")
        await until_shown(app, pilot, "notify.command  none (default)")


async def test_own_commands_and_columns_are_listed_but_not_changed(app: SkywardApp) -> None:
    table = """[columns]
runs = "lr, loss"
[commands]
top = { key = "f7", command = "ssh -t '{pool}' 'n top'" }
taken = { key = "q", command = "true" }
"""
    settings.settings_path().write_text(table)
    app.user_settings = settings.load_user_settings()
    async with opened(app) as pilot:
        await stand_on(app, pilot, "columns.runs")
        await until_shown(app, pilot, "columns.runs  lr, loss (set by you)")
        await stand_on(app, pilot, "commands.taken")
        await until_shown(app, pilot, "commands.taken  q (set by you)", "✗ q is already bound to")
        await stand_on(app, pilot, "commands.top")
        await until_shown(app, pilot, "commands.top  f7 (set by you)", "ssh -t '{pool}' 'n top'")
        await pilot.press("enter", "X")
        await until(pilot, lambda: "enter change" not in screen_text(app))
        assert isinstance(app.screen, SettingsScreen) and settings.settings_path().read_text() == table


async def test_flag_is_toggled_and_the_file_keeps_its_format(app: SkywardApp) -> None:
    settings.settings_path().write_text(BEFORE)
    async with opened(app) as pilot:
        assert not app.user_settings.motion
        await stand_on(app, pilot, "app.motion")
        await pilot.press("enter")
        await until_shown(app, pilot, "app.motion: true")
        assert app.user_settings.motion and held().motion
        assert settings.settings_path().read_text() == BEFORE.replace("false", "true")
        await pilot.press("X")
        await until_shown(app, pilot, "app.motion  true (default)")
        assert (
            "motion" not in settings.settings_path().read_text()
            and 'lab = ["gpu1"]' in settings.settings_path().read_text()
        )


async def test_ascii_setting_takes_effect_at_once(app: SkywardApp) -> None:
    async with opened(app) as pilot:
        await stand_on(app, pilot, "app.ascii")
        assert not screen_text(app).isascii()
        await press(pilot, "enter", until=lambda: screen_text(app).isascii())
        await press(pilot, "enter", until=lambda: not screen_text(app).isascii())


async def test_theme_is_picked_and_saved(app: SkywardApp) -> None:
    async with opened(app) as pilot:
        await stand_on(app, pilot, "app.theme")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, ThemePicker))
        await typed(app, pilot, "nord")
        await press(pilot, "enter", until=lambda: app.theme == "nord")
        assert held().theme == "nord"
        await until_shown(app, pilot, "app.theme  nord (set by you)")


async def test_pressed_key_is_bound_at_once(app: SkywardApp) -> None:
    async with opened(app) as pilot:
        await stand_on(app, pilot, "keys.pools.hosts")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, KeyScreen))
        await pilot.press("q")  # of the dialog below, and of the pools
        await until_shown(app, pilot, "keys.pools.hosts: q is already bound to pools.quit")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, KeyScreen))
        await pilot.press("z")
        await until_shown(app, pilot, "keys.pools.hosts: z")
        assert held().keys == {"pools.hosts": "z"}
        await press(pilot, "escape", "z", until=lambda: isinstance(app.screen, HostsScreen))


async def test_escape_leaves_a_key_binding_unchanged(app: SkywardApp) -> None:
    async with opened(app) as pilot:
        await stand_on(app, pilot, "keys.pools.hosts")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, KeyScreen))
        await press(pilot, "escape", until=lambda: isinstance(app.screen, SettingsScreen))
        assert not settings.settings_path().exists()


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("notify.after", "soon", "it must be a number of seconds, 0 or more"),
        ("notify.after", "-1", "it must be a number of seconds, 0 or more"),
        ("notify.command", "say 'so", "No closing quotation"),
        ("app.memory_of_logs", "0", "it must be a number of megabytes, from 1 to 64,000"),
    ],
)
async def test_invalid_setting_is_refused_and_not_saved(app: SkywardApp, name: str, text: str, words: str) -> None:
    async with opened(app) as pilot:
        await stand_on(app, pilot, name)
        await press(pilot, "enter", until=lambda: isinstance(app.screen, AskScreen))
        await pilot.press("end", "ctrl+u")
        await typed(app, pilot, text)
        await pilot.press("enter")
        await until_shown(app, pilot, words)
        assert not settings.settings_path().exists()


async def test_entered_numbers_and_command_are_saved_and_applied(
    app: SkywardApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "total_bytes", MemoryBudget.total_bytes)
    async with opened(app) as pilot:
        for name, text in (("app.memory_of_logs", "5"), ("notify.after", "2.5"), ("notify.command", "say done")):
            await stand_on(app, pilot, name)
            await press(pilot, "enter", until=lambda: isinstance(app.screen, AskScreen))
            await pilot.press("end", "ctrl+u")
            await typed(app, pilot, text)
            await pilot.press("enter")
            await until_shown(app, pilot, f"{name}  {text}", "set by you")
        assert held().notify == NotifySettings(("say", "done"), after=2.5)
        assert MemoryBudget.total_bytes == 5_000_000


async def test_slow_settings_file_blocks_no_key_and_its_error_is_shown_anywhere(
    app: SkywardApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, began = Event(), []

    def slow(name: str, value: object) -> None:
        began.append(name)
        assert goes_on.wait(60)
        raise PermissionError(13, "Permission denied", "skyward.toml")

    async with opened(app) as pilot:
        monkeypatch.setattr(settings, "change", slow)
        await stand_on(app, pilot, "app.motion")
        await press(pilot, "enter", until=lambda: began == ["app.motion"])
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, SettingsScreen))
        goes_on.set()
        await until_shown(app, pilot, "app.motion is unchanged: ", "Permission denied")


async def test_second_press_toggles_the_flag_back(app: SkywardApp) -> None:
    async with opened(app) as pilot:
        await stand_on(app, pilot, "app.motion")
        app.post_message(events.Key("enter", "\r"))
        app.post_message(events.Key("enter", "\r"))
        await until(
            pilot, lambda: settings.settings_path().exists() and "motion = true" in settings.settings_path().read_text()
        )
        await until_shown(app, pilot, "app.motion  true (set by you)")


async def test_invalid_values_in_the_settings_file_are_marked(app: SkywardApp) -> None:
    settings.settings_path().write_text('[notify]\nbell = "loud"\n[keys]\n"pools.hosts" = "q"\n')
    async with opened(app) as pilot:
        await stand_on(app, pilot, "notify.bell")
        await until_shown(app, pilot, "✗ it must be true or false")
        await pilot.press("X")
        await until_shown(app, pilot, "notify.bell  true (default)")
        await stand_on(app, pilot, "keys.pools.hosts")
        await until_shown(app, pilot, "✗ q is already bound to pools.quit")


async def test_unparsable_settings_file_is_reported_and_unchanged(app: SkywardApp) -> None:
    settings.settings_path().write_text("[app")
    async with opened(app) as pilot:
        await until_shown(app, pilot, "does not parse")
        await pilot.press("enter", "X")
        assert settings.settings_path().read_text() == "[app"


async def test_filter_finds_a_setting_and_escape_shows_all(app: SkywardApp) -> None:
    async with opened(app) as pilot:
        every = len(app.screen.query_one(SettingList).rows)
        await press(pilot, "slash", until=lambda: isinstance(app.screen, AskScreen))
        await typed(app, pilot, "bell")
        await press(pilot, "enter", until=lambda: isinstance(app.screen, SettingsScreen))
        rows = app.screen.query_one(SettingList).rows
        assert "notify.bell" in [row.name for row in rows] and len(rows) < every
        await press(pilot, "escape", until=lambda: len(app.screen.query_one(SettingList).rows) == every)
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, SettingsScreen))


async def test_commands_of_the_user_run_with_the_values_of_the_screen(
    app: SkywardApp, session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    async def run_in_terminal(app: SkywardApp, *command: str) -> None:
        started.append(command)

    monkeypatch.setattr("skyward_tui.ui.suspend_for_programs.run_in_terminal", run_in_terminal)
    report, script = tmp_path / "report", tmp_path / "report.py"
    script.write_text(f"import sys; open({str(report)!r}, 'w').write(repr(sys.argv[1:])); sys.exit(3)")
    command = f'{sys.executable} {script} {{pool}} "{{run}} ; $HOME {{{{"'
    settings.settings_path().write_text(
        "[commands]\n"
        f"report = {{key = 'f8', background = true, command = '{command}'}}\n"
        "look = {key = 'f9', command = 'nvitop {pool}:{rank}'}\n"
        "none = {key = 'f10', background = true, command = 'no-such-program'}\n"
        "taken = {key = 'f', command = 'true'}\n"
    )
    _, run = session.pool_with_run("p", 2)
    async with on_run_screen(app, SIZE) as (pilot, _):
        await press(pilot, "f8", until="report: exit status 3")
        assert report.read_text() == repr(["p", f"{run.id} ; $HOME {{"])
        await press(pilot, "f10", until="none cannot be started")
        await press(pilot, "f9", until=lambda: started == [("nvitop", "p:0")])
        await press(pilot, "question_mark", until=lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("slash", *"nvitop")
        await until_shown(app, pilot, "Your commands", "look: nvitop")
        await pilot.press("escape")
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, HelpScreen))
        app.read_only = True
        await press(pilot, "f9", until="not available with --read-only")
        app.read_only = False
        await pilot.press("q")
        await press(pilot, "f9", until="look needs a rank")
        app.apply_settings(settings.UserSettings())
        await pilot.press("f9")
        await pilot.pause()
        assert len(started) == 1
