"""Labs for tests; without root or the programs they need, tests that ask for one skip and say why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import HostOptions, Lab, missing

MakeLab = Callable[..., Lab]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for one test, with a SKYWARD_HOME of its own and an empty working folder."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture(scope="session")
def can_lab() -> None:
    """Skips where this machine can have no lab."""
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="session")
def session_lab(can_lab: None) -> Iterator[Lab]:
    """Four plain hosts for all tests of this process; :func:`lab` gives them, and mends them afterwards."""
    with Lab(4) as made:
        yield made


@pytest.fixture
def lab(session_lab: Lab) -> Iterator[Lab]:
    """Four plain hosts, on and plugged in. What a test breaks or leaves running is mended and ended after it;
    homes keep their files, as those of real hosts do."""
    yield session_lab
    session_lab.heal()


@pytest.fixture
def pair(lab: Lab) -> Lab:
    """The first two of them: enough where what happens on one, beside another, is all that a test looks at."""
    return lab.first(2)


@pytest.fixture
def make_lab(can_lab: None) -> Iterator[MakeLab]:
    """Makes labs of one's own, ``make_lab(2, HostOptions(...))``; they end with the test."""
    with ExitStack() as stack:

        def make(count: int, options: HostOptions | None = None, hosts: dict[int, HostOptions] | None = None) -> Lab:
            return stack.enter_context(Lab(count, options, hosts))

        yield make
