"""Fixtures of pools of real local processes. Each test has its own state folder (SKYWARD_HOME)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.cli import Cli
from tests.support.quick_starters import use_quick_starters
from tests.support.sshd import Host


@pytest.fixture(scope="module", autouse=True)
def quick_starters(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start pools of this process faster. Scripts and commands start theirs as usual.

    Modules about the processes of ranks set ``STARTS_WORKERS``: their ranks are started, not forked.
    """
    with pytest.MonkeyPatch.context() as patch:
        use_quick_starters(patch, forks_workers=not getattr(request.module, "STARTS_WORKERS", False))
        yield


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A SKYWARD_HOME shared by the tests of one file."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(home))
        yield home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SKYWARD_HOME for one test."""
    path = tmp_path / "home"
    monkeypatch.setenv("SKYWARD_HOME", str(path))
    return path


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    """Host on loopback, and a home for the client."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    host = Host(tmp_path / "host")
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
def known_hosts_file(host: Host, tmp_path: Path) -> Path:
    """File with the host's key."""
    file = tmp_path / "known"
    file.write_text(host.known_line())
    return file


@pytest.fixture(scope="module")
def pool(module_home: Path) -> Iterator[sky.Compute]:
    """Pool of four nodes with one rank each, shared by the tests of one file."""
    with sky.Compute(provider=sky.Local(), nodes=4, options=sky.Options(console=False, grace=2.0)) as compute:
        yield compute
    assert compute.receipt is not None
    assert compute.receipt.ok
    assert len(compute.receipt.gone) == 4


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Command line with its own home. Pools that a failed test leaves up are torn down."""
    cli = Cli(tmp_path)
    yield cli
    if any(tmp_path.glob("home/local/*")):
        cli("down", "--all", "--yes")
