"""The hosts screen: users of GPUs, checks, host keys, and host groups in skyward.toml."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from skyward_core.client import ssh_host_groups_and_access
from skyward_core.client.ssh_host_groups_and_access import HostGroup, configured_hosts
from skyward_core.model.provider_settings_schema import Setting
from skyward_core.store import state_folder
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.basic_dialogs import AskScreen, ChoiceScreen
from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen
from skyward_tui.screens.hosts import HostList, HostsScreen
from skyward_tui.widgets.form_fields import setting_row
from tests.support.app_driver import press, running_app, screen_text, typed, until
from tests.support.host_key import shown
from tests.support.shared_hosts import GROUPS, have_looks, put_groups

SIZE = (120, 30)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    return have_looks(monkeypatch)


@asynccontextmanager
async def opened(app: SkywardApp) -> AsyncIterator[Pilot[None]]:
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        await press(pilot, "@", until=lambda: isinstance(app.screen, HostsScreen) and "updated" in screen_text(app))
        yield pilot


async def shows(app: SkywardApp, pilot: Pilot[None], *texts: str) -> None:
    await until(pilot, lambda: all(text in screen_text(app) for text in texts))


async def answer(app: SkywardApp, pilot: Pilot[None], question: str, text: str) -> None:
    await until(pilot, lambda: isinstance(app.screen, AskScreen) and question in screen_text(app))
    await pilot.press("end", "ctrl+u")
    await typed(app, pilot, text)
    await pilot.press("enter")


async def test_hosts_screen_shows_users_of_gpus_and_host_checks(app: SkywardApp, asked: list[list[str]]) -> None:
    put_groups()
    async with opened(app) as pilot:
        await shows(
            app, pilot, "1 of 3 free", "used by bob (python, 71.2 GB)", "taken by pool llama-ft of ann",
            "✗ Host gpu2 does not answer", "there is no NVIDIA driver", "✗ 1 host not reached",
        )  # fmt: skip
        by_whom = ("○ free: 1 GPU", "● bob: 1 GPU, 71.2 GB", "● pool llama-ft of ann: 1 GPU, 12.0 GB")
        await shows(app, pilot, *by_whom, "skyward-tui run SCRIPT --hosts lab --set gpus=free")
        await pilot.press("down")
        await shows(app, pilot, *by_whom)
        await pilot.press("down")
        await shows(app, pilot, "process 4711: bob (python, 71.2 GB)")
        await pilot.press("enter")
        await shows(app, pilot, "gpu1: ready")
        await pilot.press("up")
        await shows(app, pilot, "✓ Python 3.11.7")
        await press(pilot, "r", until=lambda: asked == [["gpu1", "gpu2", "gpu3"]] * 2)
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, HostsScreen))


async def test_host_groups_are_edited_by_keys_and_the_file_keeps_its_format(
    app: SkywardApp, asked: list[list[str]]
) -> None:
    file = put_groups()
    async with opened(app) as pilot:
        await pilot.press("plus")
        await answer(app, pilot, "Host to add to lab", "gpu9")
        await shows(app, pilot, "added gpu9 to lab", "no such host")
        assert asked[-1] == ["gpu9"]
        await pilot.press("f6")
        await answer(app, pilot, "New name of lab", "cave")
        await shows(app, pilot, "renamed lab to cave")
        await press(pilot, "end", "X", until=lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("right", "enter")
        await shows(app, pilot, "gpu3 is the last host of desk. Remove the group")
        await press(pilot, "up", "X", until=lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("right", "enter")
        await shows(app, pilot, "removed group desk")
        await pilot.press("n")
        await answer(app, pilot, "Name of the new group", "far")
        await answer(app, pilot, "First host of far", "10.0.0.7")
        await shows(app, pilot, "created far with 10.0.0.7")
    assert file.read_text() == '[hosts]\ncave = ["gpu1", "gpu2", "gpu9"]  # the big ones\nfar = ["10.0.0.7"]\n'


async def test_invalid_host_file_is_reported_and_a_refused_edit_changes_nothing(
    app: SkywardApp, asked: list[list[str]]
) -> None:
    file = put_groups()
    async with opened(app) as pilot:
        await pilot.press("plus")
        await answer(app, pilot, "Host to add", "gpu1")
        await shows(app, pilot, "gpu1 is already in lab")
        file.write_text("[hosts")
        await pilot.press("r")
        await shows(app, pilot, "✗ Cannot parse")
        assert file.read_text() == "[hosts" != GROUPS


async def test_hosts_screen_without_groups_names_the_new_group_key(app: SkywardApp) -> None:
    async with running_app(app, SIZE, until=lambda: app.session is not None) as pilot:
        await pilot.press("at")
        await shows(app, pilot, "No host groups yet. n: new group")


@pytest.mark.parametrize("accepts", [True, False])
async def test_host_key_is_shown_and_accepted_on_the_hosts_screen(
    app: SkywardApp, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    written: list[str] = []

    class Shown:
        key = shown("gpu1")

        def is_known(self) -> bool:
            return bool(written)

        def accept(self) -> Path:
            written.append("gpu1")
            return Path("/k/known_hosts")

    monkeypatch.setattr(ssh_host_groups_and_access, "fetch_host_key", lambda host: Shown())
    put_groups()
    async with opened(app) as pilot:
        await press(pilot, "down", "K", until=lambda: isinstance(app.screen, HostKeyScreen))
        assert "start" not in screen_text(app), "no pool waits for it"
        await pilot.press("K" if accepts else "escape")
        await shows(app, pilot, "saved the key in /k/known_hosts" if accepts else "the key was not accepted")
        assert written == ["gpu1"] * accepts
        if accepts:
            await until(pilot, lambda: asked[-1] == ["gpu1"])
            await pilot.press("K")
            await shows(app, pilot, "the host key of gpu1 is known: SHA256:")


async def test_host_scan_that_ends_while_its_screen_closes_raises_no_error(app: SkywardApp) -> None:
    async with running_app(app, (80, 24), until=lambda: app.session is not None):
        await app.push_screen(screen := HostsScreen())
        await screen.query_one(HostList).remove()  # as it is first when the app ends
        screen._mark_changed()
        app.pop_screen()


async def test_slow_host_file_blocks_no_key_and_its_error_is_shown_anywhere(
    app: SkywardApp, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_groups()
    goes_on, began = Event(), []

    def slow(self: HostGroup, host: str) -> None:
        began.append(host)
        assert goes_on.wait(60)
        raise PermissionError(13, "Permission denied", "skyward.toml")

    async with opened(app) as pilot:
        monkeypatch.setattr(HostGroup, "add_host", slow)
        await pilot.press("plus")
        await answer(app, pilot, "Host to add to lab", "gpu9")
        await until(pilot, lambda: began == ["gpu9"])
        await press(pilot, "escape", until=lambda: not isinstance(app.screen, HostsScreen))
        goes_on.set()
        await shows(app, pilot, "Permission denied")


async def test_hosts_of_the_ssh_configuration_are_offered(
    app: SkywardApp, asked: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = state_folder.state_home() / "ssh_config"
    for file, text in {
        tmp_path / ".ssh/config": f'Include {own} conf.d/*\nHost gpu-a "gpu-b" !x *.lab gpu?\nhost=cpu\nHostName y\n',
        tmp_path / ".ssh/conf.d/more": "# Host z\nHost gpu-c gpu-a\n  Include ../config missing\n",
        own: "Host pool-1\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert configured_hosts() == ["gpu-a", "gpu-b", "cpu", "gpu-c"]
    row = setting_row("hosts", Setting("hosts", "", names_machines=True))
    (field,) = (each for each in row._pending_children if isinstance(each, Input))
    assert field.suggester is not None and await field.suggester.get_suggestion("gpu-b") == "gpu-b"
    put_groups()
    async with opened(app) as pilot:
        await press(pilot, "plus", until="gpu-c")
        await press(pilot, *"gpu-b", "backspace", "b", until="gpu-b")
        await press(pilot, "ctrl+u", *"gpu-c"[:-1], until="gpu-a")
        await press(pilot, "right", "enter", until="added gpu-a to lab")
