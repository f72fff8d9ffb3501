"""Lab fixtures. Tests that request a lab are skipped with a reason without root or the required programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import HostOptions, Lab, missing

MakeLab = Callable[..., Lab]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of one test, with its own SKYWARD_HOME and an empty working folder."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture(scope="session")
def can_lab() -> None:
    """Skip the test if this machine cannot run a lab."""
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="session")
def session_lab(can_lab: None) -> Iterator[Lab]:
    """Four plain hosts for all tests of this process. :func:`lab` provides them and repairs them after each test."""
    with Lab(4) as made:
        yield made


@pytest.fixture
def lab(session_lab: Lab) -> Iterator[Lab]:
    """Four plain hosts that run and are connected. After a test, broken parts are repaired and remaining processes are
    killed. Homes keep their files, like those of real hosts.
    """
    yield session_lab
    session_lab.heal()


@pytest.fixture
def pair(lab: Lab) -> Lab:
    """First two hosts of the lab, for tests that need no more."""
    return lab.first(2)


@pytest.fixture
def make_lab(can_lab: None) -> Iterator[MakeLab]:
    """Factory of separate labs, ``make_lab(2, HostOptions(...))``, which end with the test."""
    with ExitStack() as stack:

        def make(count: int, options: HostOptions | None = None, hosts: dict[int, HostOptions] | None = None) -> Lab:
            return stack.enter_context(Lab(count, options, hosts))

        yield make
