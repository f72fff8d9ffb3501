"""Host key questions of the app for real hosts; hosts with refused keys receive nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from skyward_core.client.session import Session
from skyward_core.store.ledger import Ledger
from skyward_core.transport.ssh import known_hosts
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen
from skyward_tui.screens.launch import LaunchScreen
from tests.support.app_driver import ask_who_is_busy, paint_on_demand, parse_once, screen_text, settled, typed, until
from tests.support.quick_styles import match_once

from . import Lab

SCRIPT = """
import skyward_core as sky

@sky.function
def where() -> str:
    import socket
    return "ran on " + socket.gethostname()
"""


@pytest.fixture(autouse=True)
def person(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Home whose SSH configuration knows the hosts, without a known_hosts file."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", settled)
    for spare in (parse_once, match_once, ask_who_is_busy, paint_on_demand):
        spare(monkeypatch)
    for name in ("SSH_AUTH_SOCK", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    known = tmp_path / "person" / ".ssh" / "known_hosts"
    known.parent.mkdir(parents=True)
    config = lab.ssh_config.read_text().replace(str(lab.known_hosts), str(known))
    (known.parent / "config").write_text(config)
    Path("where.py").write_text(SCRIPT)
    yield known
    session = Session()
    for row in session.ledger.live_pools():  # of a test that failed midway
        session.tear_down(row.name).result(60)
    session.detach()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[SkywardApp, Pilot[None]]]:
    app = SkywardApp()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None)
        yield app, pilot
        if app.session is not None and app.is_running:
            await asyncio.to_thread(app.session.detach)


async def launch(app: SkywardApp, pilot: Pilot[None], lab: Lab, hosts: int = 2) -> None:
    """Fill in the launch form with keys, and launch on some of the lab's hosts."""
    await pilot.press("n")
    await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
    await typed(app, pilot, "where.py")
    for _ in range(6):
        await pilot.press("tab")
    await until(pilot, lambda: app.focused is not None and app.focused.id == "provider")
    await pilot.press("enter", "down", "down", "enter")
    await until(pilot, lambda: app.screen.query_one("#hosts").is_on_screen)
    await pilot.press("tab")
    await typed(app, pilot, " ".join(host.name for host in lab.hosts[:hosts]))
    await until(pilot, lambda: f"hosts    {lab.hosts[0].name}" in screen_text(app))
    await pilot.press("ctrl+r")


def asks(app: SkywardApp) -> bool:
    return isinstance(app.screen, HostKeyScreen) and "Refuse" in screen_text(app)


def asking_about(app: SkywardApp) -> str:
    assert isinstance(app.screen, HostKeyScreen)
    return app.screen.key.host


def live() -> list[Any]:
    ledger = Ledger()
    try:
        return ledger.live_pools()
    finally:
        ledger.close()


@pytest.mark.proof("2 s of a processor")
async def test_accepted_host_keys_are_saved_and_the_run_succeeds(lab: Lab) -> None:
    async with opened() as (app, pilot):
        await launch(app, pilot, lab)
        asked: set[str] = set()
        for keys in (["A"], ["right", "enter"]):
            await until(pilot, lambda: asks(app) and asking_about(app) not in asked)
            asked.add(asking_about(app))
            host = next(host for host in lab.hosts if host.name == asking_about(app))
            assert host.key.get_fingerprint() in screen_text(app)
            await pilot.press(*keys)
        assert asked == {host.name for host in lab.hosts[:2]}
        await until(pilot, lambda: "✓ DONE 2/2" in screen_text(app))
        assert {line.split()[0] for line in known_hosts.own_known_hosts_file().read_text().splitlines()} == {
            host.address for host in lab.hosts[:2]
        }
        await pilot.press("X", "tab", "enter")
        await until(pilot, lambda: "created 2, verified gone 2, unaccounted 0" in screen_text(app))
        await pilot.press("enter", "q")


async def test_refused_host_key_ends_the_start_and_nothing_is_sent(lab: Lab) -> None:
    before = [host.log() for host in lab.hosts]
    async with opened() as (app, pilot):
        await launch(app, pilot, lab)
        await until(pilot, lambda: asks(app))
        await pilot.press("enter")
        await until(pilot, lambda: "Pool where did not start" in screen_text(app))
        text = " ".join(screen_text(app).replace("│", " ").split())
        assert "is not known, so nothing was sent to it" in text
        assert "skyward-tui trust" in text
        await pilot.press("enter")
        await until(pilot, lambda: "○ gone" in screen_text(app))
        assert not any(isinstance(screen, HostKeyScreen) for screen in app.screen_stack)
        assert live() == []
    assert not known_hosts.own_known_hosts_file().exists()
    for host, old in zip(lab.hosts, before, strict=True):
        assert "Accepted" not in host.log().removeprefix(old)
